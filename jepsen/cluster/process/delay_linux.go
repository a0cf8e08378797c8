package process

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// The parts of the kernel's protocol of packet queues that are used (linux/netfilter/nfnetlink_queue.h).
const (
	queuePacket               = 3 << 8 // types of messages
	queueVerdict, queueConfig = queuePacket + 1, queuePacket + 2

	attributePacket, attributeVerdict     = 1, 2
	attributeCommand, attributeParameters = 1, 2
	attributeMost, commandBind, copyMeta  = 3, 1, 1
	drop, accept                          = 0, 1
)

// mostHeld is how many packets may wait at once on one link: more go through without delay.
const mostHeld = 4096

// trouble is what happens to the packets of a queue.
type trouble struct {
	delay, jitter time.Duration // each is held for delay ± jitter
	loss          float64       // the share that is dropped instead
	seed          uint64        // of which
}

// holder holds back the packets of one queue, each for a time, and lets them go in order; or drops some.
type holder struct {
	socket int
	queue  uint16
	trouble
	packets chan held
	stopped chan struct{}
	group   sync.WaitGroup
}

type held struct {
	id  uint32
	due time.Time
}

// hold begins to hold packets of a queue of the namespace that it is called in.
func hold(queue uint16, what trouble) (*holder, error) {
	socket, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("opening a packet queue: %w", err)
	}
	h := &holder{
		socket: socket, queue: queue, trouble: what,
		packets: make(chan held, mostHeld), stopped: make(chan struct{}),
	}
	wake := unix.NsecToTimeval(int64(50 * time.Millisecond)) // to see that it is stopped
	most := binary.BigEndian.AppendUint32(nil, mostHeld)
	err = errors.Join(
		unix.SetsockoptTimeval(socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wake),
		unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_RCVBUF, 1<<20),
		h.send(queueConfig, attributeCommand, []byte{commandBind, 0, 0, 0}, true),
		h.send(queueConfig, attributeParameters, []byte{0, 0, 0, 0, copyMeta}, true),
		h.send(queueConfig, attributeMost, most, true),
	)
	if err != nil {
		_ = unix.Close(socket)
		return nil, fmt.Errorf("asking for packet queue %d: %w", queue, err)
	}
	h.group.Go(h.read)
	h.group.Go(h.release)
	return h, nil
}

// send sends a message with one attribute, and waits for its acknowledgement if that is wanted.
func (h *holder) send(kind uint16, attribute uint16, value []byte, acknowledged bool) error {
	flags := uint16(unix.NLM_F_REQUEST)
	if acknowledged {
		flags |= unix.NLM_F_ACK
	}
	padded := (len(value) + 3) &^ 3
	m := binary.NativeEndian.AppendUint32(nil, uint32(16+4+4+padded))
	m = binary.NativeEndian.AppendUint16(m, kind)
	m = binary.NativeEndian.AppendUint16(m, flags)
	m = append(m, make([]byte, 8)...)             // sequence and port: none
	m = append(m, unix.AF_UNSPEC, 0)              // family, version
	m = binary.BigEndian.AppendUint16(m, h.queue) // which queue
	m = binary.NativeEndian.AppendUint16(m, uint16(4+len(value)))
	m = binary.NativeEndian.AppendUint16(m, attribute)
	m = append(m, value...)
	m = append(m, make([]byte, padded-len(value))...)
	if err := unix.Sendto(h.socket, m, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil || !acknowledged {
		return err
	}
	answer := make([]byte, 4096)
	n, _, err := unix.Recvfrom(h.socket, answer, 0)
	if err != nil {
		return err
	}
	if n >= 20 && binary.NativeEndian.Uint16(answer[4:]) == unix.NLMSG_ERROR {
		if code := int32(binary.NativeEndian.Uint32(answer[16:])); code != 0 {
			return unix.Errno(-code)
		}
	}
	return nil
}

// read takes note of the packets that wait in the kernel.
func (h *holder) read() {
	defer close(h.packets)
	buffer := make([]byte, 64<<10)
	var last time.Time
	random := rand.New(rand.NewPCG(h.seed, uint64(h.queue)))
	for {
		select {
		case <-h.stopped:
			return
		default:
		}
		n, _, err := unix.Recvfrom(h.socket, buffer, 0)
		if err != nil {
			continue // nothing within the time, or more than the socket's buffer held: those packets are lost
		}
		for rest := buffer[:n]; len(rest) >= 16; {
			length := int(binary.NativeEndian.Uint32(rest))
			if length < 16 || length > len(rest) {
				break
			}
			if id, ok := packetOf(rest[:length]); ok && h.loss > 0 && random.Float64() < h.loss {
				_ = h.judge(id, drop)
			} else if ok {
				due := time.Now().Add(h.delay)
				if h.jitter > 0 {
					due = due.Add(time.Duration(random.Int64N(int64(2*h.jitter))) - h.jitter)
				}
				if due.Before(last) {
					due = last // TCP would take what overtakes for a loss
				}
				last = due
				select {
				case h.packets <- held{id, due}:
				default:
					_ = h.judge(id, accept)
				}
			}
			rest = rest[min(len(rest), (length+3)&^3):]
		}
	}
}

// packetOf gives the number of the packet that a message is about.
func packetOf(message []byte) (id uint32, ok bool) {
	if binary.NativeEndian.Uint16(message[4:]) != queuePacket {
		return 0, false
	}
	for rest := message[min(20, len(message)):]; len(rest) >= 4; {
		length := int(binary.NativeEndian.Uint16(rest))
		if length < 4 || length > len(rest) {
			return 0, false
		}
		if binary.NativeEndian.Uint16(rest[2:]) == attributePacket && length >= 8 {
			return binary.BigEndian.Uint32(rest[4:]), true
		}
		rest = rest[min(len(rest), (length+3)&^3):]
	}
	return 0, false
}

// release lets each packet go when its time has come, and all at once in the end.
func (h *holder) release() {
	for p := range h.packets {
		select {
		case <-time.After(time.Until(p.due)):
		case <-h.stopped:
		}
		_ = h.judge(p.id, accept)
	}
}

func (h *holder) judge(id uint32, verdict uint32) error {
	message := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, verdict), id)
	return h.send(queueVerdict, attributeVerdict, message, false)
}

// close lets everything go.
func (h *holder) close() {
	close(h.stopped)
	h.group.Wait()
	_ = unix.Close(h.socket)
}
