package fence

// Resource is what is to be fenced, by what it can do. The question is always the same: can it
// compare and set in one step?
type Resource struct {
	Transactions  bool // several writes are kept together or not at all, and nobody else's comes between
	CompareAndSet bool // one write can depend on what is there at that moment
	OwnProcess    bool // it lives and dies with one process of yours, through which all writes go
	OwnService    bool // all writes go through services of yours, which keep something that can do one of the above
}

// Fit says how a Resource is fenced.
type Fit struct {
	Kits   []string // packages and types of this module, the best first; none when it cannot be
	Advice string
}

// Fit says which kit fits; docs/fencing.md has the same as a table.
func (r Resource) Fit() Fit {
	switch {
	case r.Transactions:
		return Fit{[]string{"sqlfence.Guard.Check", "boltfence", "redisfence"}, "check the stamp against a mark inside the transaction that writes"}
	case r.CompareAndSet:
		return Fit{[]string{"sqlfence.Guard.Update", "objectfence", "filefence"}, "keep the stamp with what is written, and write on the condition that it is older"}
	case r.OwnProcess:
		return Fit{[]string{"fence.Guard"}, "keep the mark in memory, and write while nobody else can"}
	case r.OwnService:
		return Fit{[]string{"httpfence", "messagefence"}, "send the stamp along, and let the service check it in one step with its own write"}
	default:
		return Fit{nil, "it cannot be fenced: have all writes go through a service of yours that can, or see that a late write does no harm"}
	}
}
