package nemesis

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// part is what a fault has to itself while it lasts: two faults of one part never overlap, so ending the one cannot
// undo the other.
type part int

const (
	nothing part = iota
	nodes
	network
	clients
	clocks
	leadership
	everything // nothing else happens meanwhile
)

// fault is one kind of fault. plan chooses whom it hits, nil when there is nobody to hit; nothing is done before begin.
type fault struct {
	name  string
	part  part
	about string
	plan  func(*nemesis) *act
}

// act is a fault at a certain place. It is begun, made worse by steps (if it has any), and ended; end also undoes what a
// begin that failed half-way has done. In the end of a fault of nodes or everything, nodes that do not run are started.
type act struct {
	note  string
	begin func() error
	step  func() (again time.Duration, err error)
	end   func() error
	lasts time.Duration // 0: as long as faults of this run usually do
}

// None and Mixed are the names of no fault and of all of them.
const (
	None  = "none"
	Mixed = "mixed"
)

var faults = []fault{
	{None, nothing, "no fault at all", nil},
	{"kill-one", nodes, "one node is killed and started again; every other time the leader", killOne},
	{"kill-majority", nodes, "a majority is killed at once", killMajority},
	{"kill-all", nodes, "all nodes are killed at once", killAll},
	{"pause-node", nodes, "a node stands still, its connections open; every other time the leader", pauseNode},
	{"rolling-restart", nodes, "one node after the other is stopped in order and started again", rollingRestart},
	{"pause-client", clients, "a client stands still for longer than its lease", pauseClient},
	{"partition-leader", network, "the leader and all other nodes do not hear each other; clients reach both", partitionLeader},
	{"partition-halves", network, "two halves do not hear each other; every other time clients are on one side only", partitionHalves},
	{"partition-ring", network, "each node hears its neighbours only (of three: two do not hear each other)", partitionRing},
	{"partition-one-way", network, "what goes to one node, or what comes from it, is lost", partitionOneWay},
	{"client-cut", network, "some clients reach no node, or one node only", clientCut},
	{"delay", network, "packets take longer, by times that vary", delayLinks},
	{"loss", network, "some of the packets are lost", loseLinks},
	{"transfer-storm", leadership, "leadership is handed to a random node about once a second", transferStorm},
	{"slow-fsync", nodes, "an fsync takes longer: at one node, or at all", slowFsync},
	{"failing-fsync", nodes, "fsync fails at a minority", failingFsync},
	{"hanging-fsync", nodes, "fsync does not return at a minority", hangingFsync},
	{"full-disk", nodes, "a minority has no room to write", fullDisk},
	{"damage-files", everything, "a node is killed, some of its data is changed, and it is started again", damageFiles},
	{"wipe-node", everything, "a minority is killed and comes back without data", wipeNode},
	{"clock-step", clocks, "the wall clock of a node or client is set hours ahead, then hours back, or the other way round", clockStep},
	{Mixed, nothing, "all of these at random, several at a time", nil},
}

// Names lists the faults, in the order in which matrices show them.
func Names() []string {
	var names []string
	for _, f := range faults {
		names = append(names, f.name)
	}
	return names
}

// About says in one line what a fault does; "" when there is none of that name.
func About(name string) string {
	if i := slices.IndexFunc(faults, func(f fault) bool { return f.name == name }); i >= 0 {
		return faults[i].about
	}
	return ""
}

// Validate says whether a text names a fault, or several with + between, which are mixed then.
func Validate(names string) error {
	_, err := chosen(names)
	return err
}

// chosen are the faults that a text stands for.
func chosen(names string) (list []fault, err error) {
	for _, name := range strings.Split(names, "+") {
		known := false
		for _, f := range faults {
			known = known || f.name == name
			if f.plan != nil && (name == f.name || name == Mixed) {
				list = append(list, f)
			}
		}
		if !known {
			return nil, fmt.Errorf("there is no fault %q: choose some of %s", name, strings.Join(Names(), ", "))
		}
	}
	return list, nil
}
