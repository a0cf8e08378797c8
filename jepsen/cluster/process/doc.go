// Package process is a cluster of real processes on hosts of their own: the unchanged pawl program, one for each node, and
// the harness's own program, one for each client, so that clients can be stopped for longer than their lease as
// nodes can. It needs Linux, root, and the programs ip, iptables and (for faults of disks) strace.
//
// Hosts are network namespaces on one bridge. A cut drops packets where they arrive, so nobody is told that a
// connection is gone; a delay holds them there, and a loss drops some. There are no proxies: what is cut are the links that nodes advertise to
// each other. The harness itself is on the bridge too, never cut off, and so sees the nodes whatever the nemesis does.
//
// All of that is inside namespaces that Isolate makes for the harness: when its process ends, however it does, the kernel
// ends every process, address, rule and mount with it.
//
// The nodes' data is on file systems in memory, one for each node and of limited size, so that a disk can be full. A
// kill loses nothing that was written, synced or not, there as on any disk.
//
// Wall clocks of their own: there is no namespace for that one, so the code that a program reads it with is changed, in its own
// memory and on amd64 only. See clock_linux.go.
package process
