// Package local starts what the examples and tests talk to, on this machine only
// and with data in temporary directories: a PostgreSQL and a Pawl cluster.
package local
