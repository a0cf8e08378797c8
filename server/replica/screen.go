package replica

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/hashicorp/raft"
)

const (
	// highestTerm keeps a term from being counted over its end.
	highestTerm = 1 << 62
	// diskReserve stays free whatever a peer says that it is going to send.
	diskReserve = 64 << 20
)

// screen looks at every message before Raft does. Peers have proved who they are, so this is no defence against a
// member that lies; it is that no fault of a peer can panic this node or fill its disk (raft-notes §5), and that servers
// that are not members do not ask for votes.
type screen struct {
	self       string
	members    func() []Server
	free       func() (uint64, error)
	has        func(index, term uint64) bool // whether this node holds everything up to this entry
	term       func() uint64
	installing *atomic.Uint64 // the index of the snapshot that is being installed, or 0
}

// check says why Raft must not see this message.
func (s *screen) check(command any) error {
	switch request := command.(type) {
	case *raft.AppendEntriesRequest:
		if err := s.sender(request.RPCHeader, request.Term, false); err != nil {
			return err
		}
		return checkEntries(request)
	case *raft.InstallSnapshotRequest:
		if err := s.sender(request.RPCHeader, request.Term, false); err != nil {
			return err
		}
		return s.checkSnapshot(request)
	case *raft.RequestVoteRequest:
		return s.sender(request.RPCHeader, request.Term, true)
	case *raft.RequestPreVoteRequest:
		return s.sender(request.RPCHeader, request.Term, true)
	case *raft.TimeoutNowRequest:
		return s.sender(request.RPCHeader, 0, true)
	}
	return fmt.Errorf("refused: unknown message %T", command)
}

// sender checks who sends. What a leader sends is let through also when it is no member yet to this node's knowledge:
// a node that was away while a member was added, and that member elected, can learn of it only from that member
// (Ongaro's dissertation, 4.1). Everything else is for members only.
func (s *screen) sender(header raft.RPCHeader, term uint64, membersOnly bool) error {
	id := string(header.ID)
	switch {
	case header.ProtocolVersion != raft.ProtocolVersionMax:
		return fmt.Errorf("refused: protocol version %d", header.ProtocolVersion)
	case id == "" || len(header.Addr) == 0:
		return errors.New("refused: the message does not say whose it is")
	case id == s.self:
		return errors.New("refused: the message says that it is from its receiver")
	case term > highestTerm:
		return fmt.Errorf("refused: term %d", term)
	case !membersOnly:
		return nil
	}
	members := s.members()
	for _, member := range members {
		if member.ID == id {
			return nil
		}
	}
	if len(members) == 0 { // not a member of anything yet
		return nil
	}
	return fmt.Errorf("refused: %s is not in the configuration", id)
}

// checkEntries refuses what the library panics over: missing entries, kinds it does not know, configurations that it
// cannot decode, and gaps.
func checkEntries(request *raft.AppendEntriesRequest) error {
	if len(request.Entries) > 4*maxAppendEntries {
		return fmt.Errorf("refused: %d entries at once", len(request.Entries))
	}
	for i, entry := range request.Entries {
		if entry == nil {
			return errors.New("refused: an entry is missing")
		}
		if entry.Index != request.PrevLogEntry+1+uint64(i) || entry.Index == 0 {
			return fmt.Errorf("refused: entry %d is out of place", entry.Index)
		}
		if entry.Term == 0 || entry.Term > request.Term {
			return fmt.Errorf("refused: entry %d of term %d in a message of term %d", entry.Index, entry.Term, request.Term)
		}
		switch entry.Type {
		case raft.LogCommand, raft.LogNoop, raft.LogBarrier:
		case raft.LogConfiguration:
			if err := checkConfiguration(entry.Data); err != nil {
				return err
			}
		default:
			return fmt.Errorf("refused: entry %d is of the unknown kind %d", entry.Index, entry.Type)
		}
	}
	return nil
}

// checkConfiguration decodes once where a panic does no harm.
func checkConfiguration(data []byte) (err error) {
	defer func() {
		if caught := recover(); caught != nil {
			err = fmt.Errorf("refused: configuration cannot be decoded: %v", caught)
		}
	}()
	if len(raft.DecodeConfiguration(data).Servers) == 0 {
		return errors.New("refused: configuration without servers")
	}
	return nil
}

func (s *screen) checkSnapshot(request *raft.InstallSnapshotRequest) error {
	switch {
	case request.SnapshotVersion != raft.SnapshotVersionMax:
		return fmt.Errorf("refused: snapshot version %d", request.SnapshotVersion)
	case request.LastLogIndex == 0 || request.LastLogTerm == 0 || request.LastLogTerm > request.Term:
		return fmt.Errorf("refused: snapshot of index %d and term %d", request.LastLogIndex, request.LastLogTerm)
	case request.Size < 0:
		return fmt.Errorf("refused: snapshot of %d bytes", request.Size)
	}
	if err := checkConfiguration(request.Configuration); err != nil {
		return err
	}
	free, err := s.free()
	if err != nil {
		return fmt.Errorf("refused: free disk space is not known: %w", err)
	}
	if uint64(request.Size)+diskReserve > free {
		return fmt.Errorf("refused: snapshot of %d bytes, and %d are free", request.Size, free)
	}
	return nil
}
