package pawltest

import "time"

// Hold keeps back some of what is sent: see Network.Hold.
type Hold struct {
	network *Network
	match   func(Message) bool
	count   int
}

// Message is what one Write of a connection sends.
type Message struct {
	From, To string // hosts
	Answer   bool   // by the side that was dialled
	Data     []byte // must not be changed or kept
}

// Hold keeps back every message that matches, and all that follows it on its connection in that direction, as TCP does
// with what comes behind a lost packet, until Release. Other connections of the same hosts go on. match is called under the
// network's lock: it must not use the network.
func (n *Network) Hold(match func(Message) bool) *Hold {
	n.mu.Lock()
	defer n.mu.Unlock()
	h := &Hold{network: n, match: match}
	n.holds[h] = struct{}{}
	return h
}

// Count is how many messages matched so far, without those behind them.
func (h *Hold) Count() int {
	h.network.mu.Lock()
	defer h.network.mu.Unlock()
	return h.count
}

// Release ends it: what was held arrives after the link's delay, if that is not cut.
func (h *Hold) Release() {
	n := h.network
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.holds, h)
	now := time.Now()
	for p := range n.pipes {
		for side := range p.ends {
			s := &p.ends[side].sent
			if s.held != h {
				continue
			}
			s.held = nil
			for i := range s.segments {
				if s.segments[i].held {
					s.segments[i].held = false
					s.segments[i].at = now.Add(n.linkLocked(p.ends[side].name, p.ends[1-side].name).delay)
				}
			}
			p.changed.broadcast()
		}
	}
}

// holdLocked decides about a segment that is being sent.
func (n *Network) holdLocked(p *pipe, from int, s *segment) {
	stream := &p.ends[from].sent
	for h := range n.holds {
		if s.end == nil && h.match(Message{p.ends[from].name, p.ends[1-from].name, from == 1, s.data}) {
			h.count++
			if stream.held == nil {
				stream.held = h
			}
		}
	}
	s.held = stream.held != nil
}
