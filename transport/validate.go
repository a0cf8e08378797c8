package transport

import (
	"cmp"
	"fmt"
)

// firstError gives the first of the checks that failed, as an error.
func firstError(checks ...*Error) error {
	for _, check := range checks {
		if check != nil {
			return check
		}
	}
	return nil
}

// optionalNumber and optionalText take the zero value for "not given".
func optionalNumber(name string, value int64) *Error {
	if value == 0 {
		return nil
	}
	return checkNumber(name, name, value)
}

func optionalText(name, text string) *Error {
	if text == "" {
		return nil
	}
	return checkText(name, name, text)
}

// requiredText says "is required" rather than "must not be empty".
func requiredText(name, text string) *Error {
	if text == "" {
		return invalid(name, "is required")
	}
	return checkText(name, name, text)
}

func requiredNumber(name string, value int64) *Error {
	if value == 0 {
		return invalid(name, "is required")
	}
	return checkNumber(name, name, value)
}

// whole brings an unsigned number into the range of the checks without wrapping.
func whole(value uint64) int64 { return int64(min(value, 1<<62)) }

// Requested gives the locks asked for in one form, with the mode filled in. It
// is meaningful after Validate.
func (r *AcquireRequest) Requested() []LockRequest {
	if len(r.Locks) == 0 {
		return []LockRequest{{Name: r.Name, Mode: cmp.Or(r.Mode, ModeExclusive), Limit: r.Limit}}
	}
	locks := make([]LockRequest, len(r.Locks))
	for i, lock := range r.Locks {
		lock.Mode = cmp.Or(lock.Mode, ModeExclusive)
		locks[i] = lock
	}
	return locks
}

// Validate checks everything but the Idempotency-Key. The error is an *Error
// that names the field.
func (r *AcquireRequest) Validate() error {
	return firstError(r.checkLocks(), r.checkIdentity(), optionalNumber("wait_ms", r.WaitMS), optionalNumber("priority", r.Priority),
		optionalNumber("max_hold_ms", r.MaxHoldMS), optionalNumber("lock_delay_ms", r.LockDelayMS), optionalText("value", r.Value))
}

// ValidateKey checks the Idempotency-Key that came with the request; key is
// empty when there is none.
func (r *AcquireRequest) ValidateKey(key string) error {
	switch {
	case key == "":
		return nil
	case r.Session != "":
		// A session's requests have numbers; two identities could contradict each other.
		return invalid(HeaderIdempotencyKey, "is for acquires without a session")
	}
	return ValidateKey(key)
}

func (r *AcquireRequest) checkLocks() *Error {
	if len(r.Locks) == 0 {
		if r.Name == "" {
			return invalid("name", "is required (or locks)")
		}
		return checkLock("", LockRequest{Name: r.Name, Mode: r.Mode, Limit: r.Limit})
	}
	switch {
	case r.Name != "":
		return invalid("name", "and locks exclude each other")
	case r.Mode != "":
		return invalid("mode", "belongs to each of locks")
	case r.Limit != 0:
		return invalid("limit", "belongs to each of locks")
	case len(r.Locks) > MaxLocks:
		return invalid("locks", "must have at most %d elements", MaxLocks)
	}
	seen := make(map[string]int, len(r.Locks))
	for i, lock := range r.Locks {
		path := fmt.Sprintf("locks[%d].", i)
		if lock.Name == "" {
			return invalid(path+"name", "is required")
		}
		if err := checkLock(path, lock); err != nil {
			return err
		}
		if first, twice := seen[lock.Name]; twice {
			return invalid(path+"name", "is the same as locks[%d].name", first)
		}
		seen[lock.Name] = i
	}
	return nil
}

func checkLock(path string, lock LockRequest) *Error {
	if err := checkText(path+"name", "name", lock.Name); err != nil {
		return err
	}
	switch lock.Mode {
	case "", ModeExclusive:
		if lock.Limit != 0 {
			return invalid(path+"limit", "is only for mode %q", ModeShared)
		}
	case ModeShared:
		if lock.Limit != 0 {
			return checkNumber(path+"limit", "limit", lock.Limit)
		}
	default:
		return invalid(path+"mode", "must be %q or %q", ModeExclusive, ModeShared)
	}
	return nil
}

// checkIdentity tells the two kinds of acquire apart: a session has owner and
// TTL of its own and numbers its requests; without one the request brings them.
func (r *AcquireRequest) checkIdentity() *Error {
	if r.Session == "" {
		switch {
		case r.Request != 0:
			return invalid("request", "is only for acquires with a session")
		case r.Done != 0:
			return invalid("done", "is only for acquires with a session")
		case r.Task != "":
			return invalid("task", "is only for acquires with a session")
		}
		if err := requiredText("owner", r.Owner); err != nil {
			return err
		}
		return optionalNumber("ttl_ms", r.TTLMS)
	}
	switch {
	case r.Owner != "":
		return invalid("owner", "belongs to the session")
	case r.TTLMS != 0:
		return invalid("ttl_ms", "belongs to the session")
	case r.Request == 0:
		return invalid("request", "is required with a session")
	case r.Done > r.Request:
		// done says that all numbers below it are finished, and this one is not.
		return invalid("done", "must not be above request")
	}
	for _, err := range []*Error{
		checkText("session", "session", r.Session),
		checkNumber("request", "request", whole(r.Request)),
		optionalText("task", r.Task),
	} {
		if err != nil {
			return err
		}
	}
	return nil
}

// Validate checks the fields. The error is an *Error that names the field.
func (r *ConvertRequest) Validate() error {
	var itself *Error
	if r.Of == r.Request {
		itself = invalid("of", "must be another number than request")
	}
	mode := requiredText("mode", r.Mode)
	if mode == nil {
		mode = checkLock("", LockRequest{Name: r.Name, Mode: r.Mode, Limit: r.Limit})
	}
	return firstError(requiredText("session", r.Session), requiredNumber("request", whole(r.Request)), requiredNumber("of", whole(r.Of)), itself,
		requiredNumber("token", whole(uint64(r.Token))), requiredText("name", r.Name), mode, optionalNumber("wait_ms", r.WaitMS))
}

// Validate checks the fields. The error is an *Error that names the field.
func (r *CheckRequest) Validate() error {
	return firstError(requiredText("name", r.Name), requiredNumber("token", whole(uint64(r.Token))))
}

// Validate checks the fields. The error is an *Error that names the field.
func (r *ValueRequest) Validate() error {
	var value *Error
	if r.Value == nil {
		value = invalid("value", "is required")
	} else {
		value = checkValue("value", *r.Value)
	}
	return firstError(requiredText("session", r.Session), optionalNumber("request", whole(r.Request)), requiredNumber("token", whole(uint64(r.Token))),
		requiredText("name", r.Name), value)
}

// Validate checks the fields. The error is an *Error that names the field.
func (r *ForceReleaseRequest) Validate() error {
	return firstError(requiredText("name", r.Name), requiredNumber("token", whole(uint64(r.Token))), requiredText("reason", r.Reason),
		optionalNumber("lock_delay_ms", r.LockDelayMS))
}

// Validate checks the fields. The error is an *Error that names the field.
func (r *RenewRequest) Validate() error {
	return firstError(requiredText("session", r.Session), optionalNumber("done", whole(r.Done)),
		optionalNumber("ttl_ms", r.TTLMS))
}

// Validate checks the fields. The error is an *Error that names the field.
func (r *ReleaseRequest) Validate() error {
	var missing *Error
	if r.Request == 0 && r.Token == 0 {
		missing = invalid("token", "is required (or request)")
	}
	return firstError(requiredText("session", r.Session), missing, optionalNumber("request", whole(r.Request)),
		optionalNumber("token", whole(uint64(r.Token))), optionalText("name", r.Name))
}

// Validate checks a cancel without its Idempotency-Key. The error is an *Error
// that names the field.
func (r *CancelRequest) Validate() error {
	var half *Error
	switch {
	case r.Session == "" && r.Request != 0:
		half = invalid("session", "is required with request")
	case r.Session != "" && r.Request == 0:
		half = invalid("request", "is required with session")
	}
	return firstError(half, optionalText("session", r.Session), optionalNumber("request", whole(r.Request)))
}

// ValidateKey checks that either the key or the body says what to cancel; key is
// empty when there is none.
func (r *CancelRequest) ValidateKey(key string) error {
	switch {
	case key == "" && r.Session == "":
		return invalid("session", "is required (or the %s header)", HeaderIdempotencyKey)
	case key == "":
		return nil
	case r.Session != "":
		return invalid(HeaderIdempotencyKey, "and session exclude each other")
	}
	return ValidateKey(key)
}

// Validate checks the fields. The error is an *Error that names the field.
func (r *SessionRequest) Validate() error {
	return firstError(requiredText("owner", r.Owner), optionalNumber("ttl_ms", r.TTLMS), checkLabels("labels", r.Labels))
}

// Validate checks the fields. The error is an *Error that names the field.
func (r *SessionCloseRequest) Validate() error {
	return firstError(requiredText("session", r.Session))
}

// Validate checks the fields. The error is an *Error that names the field.
func (r *TransferRequest) Validate() error { return firstError(optionalText("to", r.To)) }

// Validate checks the fields. The error is an *Error that names the field.
func (r *AddRequest) Validate() error {
	var role *Error
	if r.Role != "" && r.Role != RoleVoter && r.Role != RoleNonvoter {
		role = invalid("role", "must be %q or %q", RoleVoter, RoleNonvoter)
	}
	return firstError(requiredText("name", r.Name), requiredText("address", r.Address), role)
}

// Validate checks the fields. The error is an *Error that names the field.
func (r *RemoveRequest) Validate() error { return firstError(requiredText("name", r.Name)) }

// Validate checks the fields. The error is an *Error that names the field.
func (r *DemoteRequest) Validate() error { return firstError(requiredText("name", r.Name)) }

// Validate checks the fields. The error is an *Error that names the field.
func (r *RaiseRequest) Validate() error {
	var missing *Error
	if r.Above == 0 {
		missing = invalid("above", "is required")
	}
	return firstError(missing, optionalNumber("above", whole(r.Above)), requiredText("reason", r.Reason))
}
