package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"
)

// stopped is why a context ended: a signal.
type stopped struct{ signal syscall.Signal }

func (s stopped) Error() string { return "stopped by " + s.signal.String() }

// exitSignal, and the number of the signal, is the exit code of who was stopped by one, as shells have it.
const exitSignal = 128

// untilStopped gives a context that ends with the first SIGINT or SIGTERM; further ones change nothing. Call stop when there is
// nothing more to clean up.
func untilStopped(parent context.Context) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(parent)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		select {
		case s := <-signals:
			number, _ := s.(syscall.Signal)
			cancel(stopped{number})
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		cancel(nil)
	}
}

// stopCode gives the exit code when a signal is why something ended.
func stopCode(ctx context.Context) (code int, ok bool) {
	var s stopped
	if !errors.As(context.Cause(ctx), &s) {
		return 0, false
	}
	return exitSignal + int(s.signal), true
}
