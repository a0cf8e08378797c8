package replica

import (
	"errors"
	"io"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

// snapshotStall is how long a leader may send nothing in the middle of a snapshot. Raft's main loop reads the snapshot
// itself, without a limit, and neither votes nor listens meanwhile.
const snapshotStall = 10 * time.Second

var errStalled = errors.New("the sender of the snapshot fell silent")

// receive takes a snapshot's bytes from the connection on a goroutine of its own, so that a sender that falls silent can be
// given up. It gives the message that Raft is to see, if it is to see one.
//
// A snapshot of what this node already has is answered "done" and goes no further. Raft would install it: take its
// state back and drop its log, and with it entries that it has acknowledged since; a leader that counted them could then
// be followed by one that never had them. Such messages are late repeats of one whose answer was lost.
func (t *transport) receive(rpc raft.RPC, request *raft.InstallSnapshotRequest) (inner raft.RPC, forRaft bool) {
	body, feed := io.Pipe()
	answer := make(chan raft.RPCResponse, 1)
	stalled := new(atomic.Bool)
	inner = raft.RPC{Command: request, Reader: body, RespChan: answer}
	old := request.Term == t.screen.term() && t.screen.has(request.LastLogIndex, request.LastLogTerm)
	if !old {
		t.screen.installing.Store(request.LastLogIndex)
	} else {
		go func() { // ends with the pipe
			_, err := io.Copy(io.Discard, body)
			inner.Respond(&raft.InstallSnapshotResponse{
				RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax}, Term: request.Term, Success: err == nil,
			}, err)
		}()
	}
	go pump(feed, rpc.Reader, stalled) // ends with the body or with the connection
	go func() {
		select {
		case response := <-answer:
			t.screen.installing.CompareAndSwap(request.LastLogIndex, 0)
			if stalled.Load() {
				response = raft.RPCResponse{Response: hangUp{}}
			}
			rpc.Respond(response.Response, response.Error)
		case <-t.stopped: // the library's goroutine sees that too
		}
	}()
	return inner, !old
}

// pump copies from the connection; only the time in which the sender is waited for counts.
func pump(feed *io.PipeWriter, from io.Reader, stalled *atomic.Bool) {
	stall := time.AfterFunc(snapshotStall, func() {
		stalled.Store(true)
		_ = feed.CloseWithError(errStalled)
	})
	defer stall.Stop()
	buffer := make([]byte, 64<<10)
	for {
		stall.Reset(snapshotStall)
		n, err := from.Read(buffer)
		stall.Stop()
		if n > 0 {
			if _, failed := feed.Write(buffer[:n]); failed != nil {
				return
			}
		}
		if err != nil {
			_ = feed.CloseWithError(err) // io.EOF ends it, short or not: Raft compares the size
			return
		}
	}
}
