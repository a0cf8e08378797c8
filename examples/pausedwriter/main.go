// Command pausedwriter shows what a fencing token is for. Two workers add to one account in PostgreSQL, under a lock. The
// first is stopped (SIGSTOP) after it has looked whether it still holds the lock, and before it writes; its lease ends, the
// second takes over and writes; then the first wakes up and writes what it had worked out. With the fencing kit the
// database refuses that. Without it (--unfenced) the second deposit is gone, and nobody has made an error.
//
//	pausedwriter             both stories, on a PostgreSQL and a cluster of its own
//	pausedwriter --unfenced  only the one without the kit
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/pawl-lock/pawl/examples/local"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "pausedwriter:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	var w worker
	program := flag.String("pawl", "bin/pawl", "the pawl program")
	flag.BoolVar(&w.unfenced, "unfenced", false, "write without looking at the token")
	flag.StringVar(&w.name, "worker", "", "be a worker of this name (the story starts them)")
	flag.StringVar(&w.dsn, "dsn", "", "the worker's database")
	flag.StringVar(&w.endpoints, "endpoints", "", "the worker's cluster")
	flag.Int64Var(&w.deposit, "deposit", 0, "what the worker adds")
	flag.BoolVar(&w.pause, "pause", false, "have the worker stop itself before it writes")
	flag.Parse()
	if w.name != "" {
		return w.work(ctx)
	}

	starting, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	fmt.Println("Starting a PostgreSQL and three nodes of Pawl …")
	postgres, err := local.StartPostgres(starting)
	if err != nil {
		return err
	}
	defer postgres.Stop()
	pawl, err := local.StartPawl(starting, *program)
	if err != nil {
		return err
	}
	defer pawl.Stop()

	stories := []bool{false, true}
	if w.unfenced {
		stories = stories[1:]
	}
	for _, unfenced := range stories {
		s := &story{dsn: postgres.Address, endpoints: pawl.Address, unfenced: unfenced, out: os.Stdout}
		balance, err := s.tell(ctx)
		if err != nil {
			return err
		}
		if corrupted := balance != expected; corrupted != unfenced {
			return fmt.Errorf("the balance is %d, which is not how this story ends", balance)
		}
	}
	return nil
}
