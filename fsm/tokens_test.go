package fsm

import "fmt"

// tokens watches over the tokens of a whole run (R6, R10): a new exclusive token, and one that opens a shared period, is
// above every earlier one of its lock and is that of its entry; what joins a period has the period's. A conversion gives
// a new token under the same rule.
type tokens struct {
	last map[string]part
	seen map[held]uint64
}

type held struct {
	seq  Seq
	name string
}

func newTokens() *tokens { return &tokens{last: map[string]part{}, seen: map[held]uint64{}} }

// after looks at the grants and conversions that the latest entry made.
func (t *tokens) after(s *State) error {
	for _, r := range allRequests(s) {
		if !r.granted || r.converts() {
			continue
		}
		for _, p := range r.locks {
			if at := (held{r.seq, p.Name}); p.lock == 0 || t.seen[at] == p.token {
				continue
			} else {
				t.seen[at] = p.token
			}
			last := t.last[p.Name]
			joins := p.Mode == Shared && last.Mode == Shared && p.token == last.token
			opens := p.token > last.token && p.token == s.base+s.index
			if !joins && !opens {
				return fmt.Errorf("lock %q: token %d of mode %d in the entry of %d, after %d of mode %d",
					p.Name, p.token, p.Mode, s.base+s.index, last.token, last.Mode)
			}
			t.last[p.Name] = p
		}
	}
	return nil
}
