// Package local starts what examples, tests and the harness talk to, on this machine only
// and with data in temporary directories: a PostgreSQL and a Pawl cluster.
package local
