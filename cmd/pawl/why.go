package main

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/pawl-lock/pawl/client"
	"github.com/pawl-lock/pawl/transport"
)

// Bounds of what pawl why looks at.
const (
	whyDepth   = 8   // locks below each other
	whyBreadth = 6   // holders of a lock
	whyWaited  = 200 // locks with waiters that are read to see who waits where
)

func (p *program) whyCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "why NAME",
		Short: "Show what a lock waits for: its holders, what these wait for, and so on",
		Long: `Show what a lock waits for, as a tree: its holders, the locks that these wait for themselves, their holders, and so on.
Who waits is known by session and task. A holder without a task is shown with what others of its session without a task
wait for, as "perhaps": whether that is the same unit of work only the client knows.`,
		Args: cobra.ExactArgs(1),
		RunE: action(p.callWork(func(ctx context.Context, c *client.Client, args []string) error {
			w := &whyReader{client: c, read: map[string]transport.LockResponse{}, waits: map[party][]string{}}
			if err := w.index(ctx); err != nil {
				return err
			}
			tree, err := w.lock(ctx, args[0], nil)
			if err != nil {
				return err
			}
			return p.show(tree, func() error {
				tree.write(p.stdout, "", "")
				if w.partial {
					fmt.Fprintf(p.stderr, "More than %d locks have waiters: what holders wait for at the others is not shown.\n", whyWaited)
				}
				return nil
			})
		})),
	}
}

// whyLock is a lock and who is in the way there.
type whyLock struct {
	Name  string     `json:"name"`
	State string     `json:"state"`
	Held  []whyParty `json:"held_by,omitempty"`
	More  int        `json:"more,omitempty"` // holders that are not shown
}

// whyParty is somebody in the way of a lock, with what it waits for itself.
type whyParty struct {
	Owner   string          `json:"owner"`
	Task    string          `json:"task,omitempty"`
	Session string          `json:"session,omitempty"`
	Token   transport.Token `json:"token,omitempty"`
	HeldMS  int64           `json:"held_ms,omitempty"`
	Next    bool            `json:"next_in_line,omitempty"` // it holds nothing here, and goes before all others
	Perhaps bool            `json:"perhaps,omitempty"`      // it is not certain that the holder itself waits
	Waits   []whyLock       `json:"waits_for,omitempty"`
}

// party is who can wait.
type party struct{ session, task string }

// whyReader reads every lock once.
type whyReader struct {
	client  *client.Client
	read    map[string]transport.LockResponse
	waits   map[party][]string // the locks that each waits for
	partial bool
}

// index finds out who waits for what.
func (w *whyReader) index(ctx context.Context) error {
	page, err := w.client.Calls().ListLocks(ctx, client.LocksQuery{Waiting: true, Page: client.Page{Limit: whyWaited}})
	if err != nil {
		return err
	}
	w.partial = page.Next != ""
	for _, l := range page.Locks {
		lock, err := w.get(ctx, l.Name)
		if err != nil {
			return err
		}
		for _, waiter := range lock.Queue {
			at := party{waiter.Session, waiter.Task}
			for _, name := range waiter.WaitsFor {
				if !slices.Contains(w.waits[at], name) {
					w.waits[at] = append(w.waits[at], name)
				}
			}
		}
	}
	return nil
}

func (w *whyReader) get(ctx context.Context, name string) (transport.LockResponse, error) {
	if lock, known := w.read[name]; known {
		return lock, nil
	}
	lock, err := w.client.Calls().GetLock(ctx, name)
	if err == nil {
		w.read[name] = lock
	}
	return lock, err
}

// lock explains one lock; above are the locks on the way to it.
func (w *whyReader) lock(ctx context.Context, name string, above []string) (whyLock, error) {
	lock, err := w.get(ctx, name)
	if err != nil {
		return whyLock{}, err
	}
	out := whyLock{Name: name, State: lockState(lock)}
	switch {
	case slices.Contains(above, name):
		out.State += ", as above: a cycle"
		return out, nil
	case len(above) == whyDepth:
		out.State += ", and so on"
		return out, nil
	}
	above = append(slices.Clone(above), name)
	for _, h := range lock.Holders[:min(len(lock.Holders), whyBreadth)] {
		one := whyParty{Owner: h.Owner, Task: h.Task, Session: h.Session, Token: h.Token, HeldMS: h.HeldMS}
		// One that converts waits for the others here, which are shown beside it.
		names := without(w.waits[party{h.Session, h.Task}], name)
		if one.Waits, err = w.waiting(ctx, names, above); err != nil {
			return out, err
		}
		one.Perhaps = h.Task == "" && len(one.Waits) > 0
		out.Held = append(out.Held, one)
	}
	out.More = len(lock.Holders) - len(out.Held)
	if len(lock.Holders) == 0 && len(lock.Queue) > 0 {
		// Nobody holds it, so whoever is first waits for something else too.
		first := lock.Queue[0]
		one := whyParty{Owner: first.Owner, Task: first.Task, Session: first.Session, Next: true}
		if one.Waits, err = w.waiting(ctx, without(first.WaitsFor, name), above); err != nil {
			return out, err
		}
		out.Held = append(out.Held, one)
	}
	return out, nil
}

func without(names []string, name string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(other string) bool { return other == name })
}

func (w *whyReader) waiting(ctx context.Context, names, above []string) (out []whyLock, err error) {
	for _, name := range names[:min(len(names), whyBreadth)] {
		lock, err := w.lock(ctx, name, above)
		if err != nil {
			return nil, err
		}
		out = append(out, lock)
	}
	return out, nil
}

// write draws the tree; first and rest are what its first line and the others begin with.
func (l whyLock) write(out io.Writer, first, rest string) {
	fmt.Fprintf(out, "%s%s: %s\n", first, shown(l.Name), l.State)
	for i, h := range l.Held {
		last := i == len(l.Held)-1 && l.More == 0
		h.write(out, rest+branch(last), rest+trunk(last))
	}
	if l.More > 0 {
		fmt.Fprintf(out, "%s%s and %d more\n", rest, branch(true), l.More)
	}
}

func (h whyParty) write(out io.Writer, first, rest string) {
	who := shown(h.Owner)
	if h.Task != "" {
		who += ", task " + shown(h.Task)
	}
	if h.Next {
		fmt.Fprintf(out, "%s next is %s\n", first, who)
	} else {
		fmt.Fprintf(out, "%s %s, token %d, for %s\n", first, who, h.Token, duration(h.HeldMS))
	}
	word := " waits for "
	if h.Perhaps {
		word = " perhaps waits for "
	}
	for i, l := range h.Waits {
		last := i == len(h.Waits)-1
		l.write(out, rest+branch(last)+word, rest+trunk(last))
	}
}

func branch(last bool) string {
	if last {
		return "└─"
	}
	return "├─"
}

func trunk(last bool) string {
	if last {
		return "   "
	}
	return "│  "
}
