package runner

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/pawl-lock/pawl/client"
	"github.com/pawl-lock/pawl/jepsen/cluster"
	"github.com/pawl-lock/pawl/jepsen/history"
	"github.com/pawl-lock/pawl/jepsen/workload"
)

// ClientCommand is the argument with which the harness's program is to call Work.
const ClientCommand = "client"

// Task is what a client in a process of its own is told, as one line of its input.
type Task struct {
	Spec      Spec
	Index     int
	Endpoints []string
	Began     time.Duration // the cluster's time 0, on the clock of client.Now
	History   string        // the file that it records into
	Store     string        // where the Store is: see openShared
}

// apart is a cluster whose clients are in processes of their own.
type apart struct {
	cluster.Apart
	dir   string // where the clients record
	store string // where the Store is
}

// work has client i work until ctx ends, and gives what it has recorded, also with an error.
func (a apart) work(ctx context.Context, spec Spec, i int) ([]history.Op, error) {
	task := Task{
		Spec: spec, Index: i, Endpoints: a.Client(i).Endpoints, Began: client.Now() - a.Now(),
		History: filepath.Join(a.dir, fmt.Sprintf("client%d.jsonl", i)), Store: a.store,
	}
	line, err := json.Marshal(task)
	if err != nil {
		return nil, err
	}
	err = a.Spawn(ctx, i, []string{ClientCommand}, append(line, '\n'))
	file, openErr := os.Open(task.History)
	if openErr != nil {
		return nil, errors.Join(err, openErr)
	}
	defer file.Close()
	ops, readErr := history.ReadLines(file)
	if readErr != nil {
		readErr = fmt.Errorf("what client %d has recorded: %w", i, readErr)
	}
	return ops, errors.Join(err, readErr)
}

// Work is a client in a process of its own: it reads its Task, works until the input ends, gives back what it holds, and
// returns. Every operation is in the file of its history before anything else happens.
func Work(input io.Reader) error {
	lines := bufio.NewReader(input)
	line, err := lines.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("reading the task: %w", err)
	}
	var task Task
	if err := json.Unmarshal(line, &task); err != nil {
		return fmt.Errorf("reading the task: %w", err)
	}
	w, err := workload.ByName(task.Spec.Workload)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(task.History, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() {
		defer stop()
		_, _ = io.Copy(io.Discard, lines)
	}()
	now := func() time.Duration { return client.Now() - task.Began }
	h := history.New(now, mostOps)
	var failed error
	h.Tee(func(op history.Op) {
		if err := history.WriteLines(file, []history.Op{op}); err != nil {
			failed = errors.Join(err, failed)
			stop()
		}
	})
	pool := http.DefaultTransport.(*http.Transport).Clone()
	pool.MaxIdleConnsPerHost = 64
	store, err := openShared(task.Spec, w, task.Store)
	if err != nil {
		return errors.Join(err, file.Close())
	}
	e := &workload.Env{
		Client: cluster.Client{
			Endpoints: task.Endpoints, HTTP: &http.Client{Transport: pool}, Clock: now, Point: func(context.Context) {},
		},
		Index: task.Index, Clients: task.Spec.Clients + 1, Rand: clientRandom(task.Spec, task.Index),
		History: h, Now: now, Sleep: sleep, Rate: task.Spec.Rate, Store: store,
	}
	e.Begin()
	w.Client(ctx, e)
	if !h.Whole() {
		failed = errors.Join(failed, errors.New("there were too many operations"))
	}
	return errors.Join(failed, store.Close(), file.Close())
}

// clientRandom is the chance of one client.
func clientRandom(spec Spec, i int) *rand.Rand {
	return rand.New(rand.NewPCG(spec.Seed, uint64(i)+100))
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
