package workload

import "github.com/pawl-lock/pawl/jepsen/check"

func exclusive() []check.Checker               { return nil }
func registers(unchecked bool) []check.Checker { return nil }
func queues() []check.Checker                  { return nil }
func (readWrite) Checkers() []check.Checker    { return nil }
func (semaphore) Checkers() []check.Checker    { return nil }
func (lockset) Checkers() []check.Checker      { return nil }
func (several) Checkers() []check.Checker      { return nil }
func (sessions) Checkers() []check.Checker     { return nil }
func (requests) Checkers() []check.Checker     { return nil }
func (reads) Checkers() []check.Checker        { return nil }
func (election) Checkers() []check.Checker     { return nil }
