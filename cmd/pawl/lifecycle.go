package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/pawl-lock/pawl/server"
)

// stopWithin is how long nodes may take to stop before the process ends all the same; compose and systemd wait longer.
const stopWithin = 10 * time.Second

// watchSignals gives a context that ends with ctx or the first SIGTERM or SIGINT. A second one ends the process at
// once, for when stopping takes too long for somebody.
func (p *program) watchSignals(ctx context.Context) context.Context {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer cancel()
		select {
		case <-signals:
		case <-ctx.Done():
			return
		}
		cancel()
		<-signals
		fmt.Fprintln(p.stderr, "pawl: stopped at once by a second signal")
		p.exit(exitFailure)
	}()
	return ctx
}

// failStop ends the process when a node must not go on (R16, fail-stop): whatever it still said could be wrong.
func (p *program) failStop(reason error) {
	fmt.Fprintf(p.stderr, "pawl: stopped because it must not go on: %v\n", reason)
	p.exit(exitFailure)
}

// untilStopped waits for stop and then stops the nodes, all at once, or for the first of them to fail.
func (p *program) untilStopped(stop context.Context, log hclog.Logger, nodes ...*server.Node) error {
	if err := waitFor(stop, nodes); err != nil {
		p.failStop(err)
		return err
	}
	log.Info("stopping")
	// ctx of the run has ended already: stopping has a time of its own.
	ctx, cancel := context.WithTimeout(context.Background(), stopWithin)
	defer cancel()
	return stopAll(ctx, nodes)
}

// waitFor returns the error of the first node that fails, or nil when stop ends.
func waitFor(stop context.Context, nodes []*server.Node) error {
	failed := make(chan error, len(nodes))
	for _, node := range nodes {
		go func() {
			select {
			case err := <-node.Failed():
				failed <- err
			case <-stop.Done():
			}
		}()
	}
	select {
	case err := <-failed:
		return err
	case <-stop.Done():
		return nil
	}
}

// stopAll stops the nodes at the same time: one after the other would hand leadership from each to the next.
func stopAll(ctx context.Context, nodes []*server.Node) error {
	results := make([]error, len(nodes))
	var stopping sync.WaitGroup
	for i, node := range nodes {
		stopping.Go(func() { results[i] = node.Stop(ctx) })
	}
	done := make(chan struct{})
	go func() {
		stopping.Wait()
		close(done)
	}()
	select {
	case <-done:
		return errors.Join(results...)
	case <-ctx.Done():
		return fmt.Errorf("stopping: %w", ctx.Err())
	}
}
