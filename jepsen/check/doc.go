// Package check judges histories.
//
// A checker is told the truth by its clients, but not all of it: what was acknowledged happened, what was refused did
// not, and of what has an unknown outcome nothing is ever held against the cluster. Every checker errs on that side, and
// says in its Figures how much it could judge. A pass over nothing is Unknown, and Unknown is not a pass.
//
//	Linearizable  an order of grants, conversions, releases and looks that a single lock could have done (porcupine)
//	Exclusion     nobody believes to hold what another believes to hold
//	Tokens        fencing tokens rise, on each lock and, since they are log indexes, on all together
//	Leases        nobody is freed before the end of a lease that was told
//	Wakeups       no lock is idle, and no permit free, while somebody waits: no waiter forgotten, no dead holder kept
//	Fairness      first come, first served
//	Liveness      after all faults everything works again, in time
//	Requests      a numbered request happens once, however often it is sent
//	Strays        a release with the token of another grant is refused
//	Reads         looks show what was acknowledged, and nothing that was over
//	LostUpdates   no acknowledged write of a register is lost; Set, Bank: the same of a set, of accounts
//	Digests       equal states at equal indexes of the log
//	Logs          no panic and no data race
//
// What the operations of a history mean is said in package workload.
package check
