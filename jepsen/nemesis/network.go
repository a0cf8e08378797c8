package nemesis

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// link is one direction from one host to another.
type link struct{ from, to int }

// both gives the links between every host of the one list and every host of the other, in both directions.
func both(some, others []int) (links []link) {
	for _, a := range some {
		for _, b := range others {
			if a != b {
				links = append(links, link{a, b}, link{b, a})
			}
		}
	}
	return links
}

// cut is a partition.
func (n *nemesis) cut(note string, links []link) *act {
	return n.onEach(links, note, func(l link) error { return n.cluster.Cut(l.from, l.to) })
}

func (n *nemesis) allNodes() (all []int) {
	for i := range n.cluster.Size() {
		all = append(all, i)
	}
	return all
}

// someClients gives at least one client, as hosts; none when there is none.
func (n *nemesis) someClients() (hosts []int) {
	if n.options.Clients == 0 {
		return nil
	}
	order := n.random.Perm(n.options.Clients)
	for _, i := range order[:1+n.random.IntN(len(order))] {
		hosts = append(hosts, n.cluster.Size()+i)
	}
	return hosts
}

func partitionLeader(n *nemesis) *act {
	leader := n.cluster.Leader()
	if leader < 0 || n.cluster.Size() < 2 {
		return nil
	}
	return n.cut(n.name(leader), both([]int{leader}, n.allNodes()))
}

func partitionHalves(n *nemesis) *act {
	if n.cluster.Size() < 2 {
		return nil
	}
	order := n.random.Perm(n.cluster.Size())
	small, large := order[:len(order)/2], order[len(order)/2:]
	if n.random.IntN(2) == 0 { // and the clients, each with one side
		for i := range n.options.Clients {
			if host := n.cluster.Size() + i; n.random.IntN(2) == 0 {
				small = append(slices.Clone(small), host)
			} else {
				large = append(slices.Clone(large), host)
			}
		}
	}
	return n.cut(n.nameAll(small)+" | "+n.nameAll(large), both(small, large))
}

func partitionRing(n *nemesis) *act {
	ring := n.random.Perm(n.cluster.Size())
	if len(ring) < 3 {
		return nil
	}
	if len(ring) == 3 { // everybody is everybody's neighbour: a bridge then
		return n.cut(n.name(ring[0])+" – "+n.name(ring[1])+" – "+n.name(ring[2]), both(ring[:1], ring[2:]))
	}
	var links []link
	note := ""
	for i, a := range ring {
		note += n.name(a) + " – "
		for j := i + 2; j < len(ring); j++ {
			if j-i < len(ring)-1 {
				links = append(links, both([]int{a}, []int{ring[j]})...)
			}
		}
	}
	return n.cut(note+n.name(ring[0]), links)
}

func partitionOneWay(n *nemesis) *act {
	victim := n.some(1)[0]
	inbound := n.random.IntN(2) == 0
	var links []link
	for _, other := range n.allNodes() {
		switch {
		case other == victim:
		case inbound:
			links = append(links, link{other, victim})
		default:
			links = append(links, link{victim, other})
		}
	}
	if len(links) == 0 {
		return nil
	}
	if inbound {
		return n.cut("to "+n.name(victim), links)
	}
	return n.cut("from "+n.name(victim), links)
}

func clientCut(n *nemesis) *act {
	victims := n.someClients()
	if len(victims) == 0 {
		return nil
	}
	cut, note := n.allNodes(), n.nameAll(victims)
	if n.random.IntN(2) == 0 {
		left := n.some(1)[0]
		cut = slices.DeleteFunc(cut, func(node int) bool { return node == left })
		note += " but for " + n.name(left)
	}
	return n.cut(note, both(victims, cut))
}

// someLinks are those of one node, those between all nodes, or those of some clients; none when there are no clients.
func (n *nemesis) someLinks() (links []link, note string) {
	switch n.random.IntN(3) {
	case 0:
		victim := n.some(1)
		return both(victim, n.allNodes()), n.nameAll(victim)
	case 1:
		all := n.allNodes()
		for i := range all {
			links = append(links, both(all[i:i+1], all[i+1:])...)
		}
		return links, "between all nodes"
	default:
		victims := n.someClients()
		return both(victims, n.allNodes()), n.nameAll(victims)
	}
}

// onEach does something to several links. Heal ends all that there is: faults of the network never overlap.
func (n *nemesis) onEach(links []link, note string, do func(link) error) *act {
	if len(links) == 0 {
		return nil
	}
	return &act{
		note: note,
		begin: func() error {
			var errs []error
			for _, l := range links {
				errs = append(errs, do(l))
			}
			return errors.Join(errs...)
		},
		end: n.cluster.Heal,
	}
}

func delayLinks(n *nemesis) *act {
	delay := time.Duration(5+n.random.IntN(150)) * time.Millisecond
	jitter := time.Duration(n.random.Int64N(int64(delay)))
	links, note := n.someLinks()
	note += " by " + delay.String() + " ± " + jitter.Round(time.Millisecond).String()
	return n.onEach(links, note, func(l link) error { return n.cluster.Delay(l.from, l.to, delay, jitter) })
}

func loseLinks(n *nemesis) *act {
	percent := 5 + n.random.IntN(16)
	seed := n.random.Uint64()
	links, note := n.someLinks()
	return n.onEach(links, fmt.Sprintf("%s, %d %%", note, percent), func(l link) error {
		seed++ // or the same turns would be lost on each
		return n.cluster.Lose(l.from, l.to, float64(percent)/100, seed)
	})
}
