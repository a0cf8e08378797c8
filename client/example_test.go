package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/pawl-lock/pawl/client"
)

func Example() {
	ctx := context.Background()
	pawl, err := client.New([]string{"http://127.0.0.1:7700", "http://127.0.0.1:7701", "http://127.0.0.1:7702"})
	if err != nil {
		log.Fatal(err)
	}
	defer pawl.Close(ctx)
	err = pawl.Do(ctx, "nightly-report", func(ctx context.Context) error {
		// ctx ends when the lock is lost. What is acquired under it is known as nested.
		return pawl.Do(ctx, "warehouse", writeReport)
	}, client.Priority(10))
	switch {
	case errors.Is(err, client.ErrNotAcquired):
		log.Print("somebody else's turn: ", err)
	case errors.Is(err, client.ErrLost):
		log.Print("lost while at work: ", err)
	}
}

func writeReport(context.Context) error { return nil }

func ExampleElection() {
	ctx := context.Background()
	pawl, err := client.New([]string{"http://127.0.0.1:7700"})
	if err != nil {
		log.Fatal(err)
	}
	defer pawl.Close(ctx)
	election := pawl.Election("scheduler", "")
	go func() {
		for leader, err := range election.Observe(ctx) {
			if err != nil {
				return
			}
			fmt.Println(leader.Candidate, "leads at", leader.Value)
		}
	}()
	for {
		leadership, err := election.Campaign(ctx, "10.0.0.7:9000")
		if err != nil {
			log.Fatal(err)
		}
		lead(leadership.Context())
		_ = leadership.Resign(ctx) // it may have been lost
	}
}

func lead(ctx context.Context) { <-ctx.Done() }

// Schedulers as github.com/go-co-op/gocron/v2 take a locker, so that a job runs on one machine only. Its interface names a
// type of its own, so these lines belong into your program, where jobLocker is passed to gocron.WithDistributedLocker:
//
//	func (l jobLocker) Lock(ctx context.Context, job string) (gocron.Lock, error)
//
// A job that another machine runs at this moment is not run here. One that takes less time than the clocks of the machines
// differ would run on both: keep such a one for longer, or note in its storage what was done.
func ExampleClient_TryAcquire_scheduler() {
	pawl, err := client.New([]string{"http://127.0.0.1:7700"})
	if err != nil {
		log.Fatal(err)
	}
	locker := jobLocker{pawl}
	lock, err := locker.Lock(context.Background(), "nightly-report")
	if err != nil {
		return // the scheduler does not run the job
	}
	_ = lock.Unlock(context.Background()) // it does so after the job
}

type jobLocker struct{ pawl *client.Client }

func (l jobLocker) Lock(ctx context.Context, job string) (schedulerLock, error) {
	lock, err := l.pawl.TryAcquire(ctx, "jobs/"+job)
	if err != nil {
		return nil, err
	}
	return jobLock{lock}, nil
}

type jobLock struct{ *client.Lock }

func (l jobLock) Unlock(ctx context.Context) error { return l.Release(ctx) }

// schedulerLock is gocron.Lock.
type schedulerLock interface{ Unlock(context.Context) error }
