// Package jepsen is the harness that looks for what the other tests cannot find: real
// clusters under faults, with clients that write down all they see, and checkers
// that judge it afterwards. It owes its shape to Jepsen (Kyle Kingsbury): processes,
// a history of invocations and completions, a nemesis, checkers, and unknown
// outcomes that stay open for ever.
//
//	workload ── operations ──► cluster ◄── faults ── nemesis
//	    │                                               │
//	    └──────────────► history ◄──────────────────────┘
//	                        │
//	                     checkers ──► verdicts ──► report
//
// Everything random comes from one seed, which is printed.
//
//	history/    what happened: operations, in memory and as files
//	check/      what must be true of a history
//	cluster/    what faults act on: in virtual time, as processes, in containers
//	nemesis/    the faults
//	workload/   what clients do, and which checkers judge it
//	script/     schedules that are written down, for what chance does not find
//	report/     a folder for each run, with a page to look at
//	cmd/pawl-jepsen   the command
package jepsen
