// Package redisfence fences what is kept in Redis (or Valkey): one script compares the stamp with
// the mark, moves it on and writes, which Redis runs as one step. It needs no client library of its
// own; with github.com/redis/go-redis/v9 an Eval is
//
//	func(ctx context.Context, script string, keys []string, args ...any) (any, error) {
//		return client.Eval(ctx, script, keys, args...).Result()
//	}
//
// A mark is a string key that the caller names. In a Redis Cluster it must be in the slot of the
// keys that are written under it: "{report}:mark" for "{report}".
//
// A client library that sends a write again when it lost the answer (go-redis does so three times
// unless MaxRetries is -1) is refused the second time although the write was done:
// StaleError.Repeated says so, when nobody else came between.
//
// What it cannot guarantee: Redis forgets. Without an append-only file, or with "appendfsync
// everysec" (the default), a crash loses the last writes with their marks, up to all or about a
// second of them; then a late write of an old holder is accepted that was refused before.
// Replication is asynchronous: a replica that takes over (Sentinel, Cluster) may lack the newest
// marks, and WAIT makes that rare, not impossible. "appendfsync always" on a server that is not
// failed over keeps what it has answered. A memory policy "allkeys-…" may evict marks: use
// "noeviction" or a "volatile-…" one, as marks have no expiry. FLUSHDB, a restored snapshot, DEL of
// the mark: all forget. Redis does not roll a script back either: see Run. Where that is too
// little, keep mark and data in a database with transactions.
package redisfence

import (
	"context"
	"fmt"
	"strings"

	"github.com/pawl-lock/pawl/client/fence"
)

// Eval has Redis run a script, as EVAL does: answers are an int64, a string or []byte, a slice of
// these ([]any), or nil.
type Eval func(ctx context.Context, script string, keys []string, args ...any) (any, error)

// The caller's script sees KEYS and ARGV as if it were alone. Lua's numbers are floats, which are
// exact for tokens and sequences: both stay below 2^53. A mark that cannot be read fails the
// script: taking it for "nothing seen" would let everybody in. Sequence 2^53-1 stands for a shared
// stamp (fence.SharedSequence). Sequence 0 is the mark of a hold none of whose writes was done: it is
// set before the write, so that one that fails halfway has shut older holders out, and the stamp
// itself after it, so that a write that failed is not taken for one that was done.
const (
	before = `
local function pawl_parse(text)
  local token, sequence = string.match(text, '^(%d+)%.([%ds]+)$')
  if sequence == 's' then sequence = '9007199254740991' end
  return tonumber(token), tonumber(sequence)
end
local pawl_token, pawl_sequence = pawl_parse(ARGV[1])
local pawl_seen = redis.call('GET', KEYS[1])
local pawl_above, pawl_newer = true, true
if pawl_seen then
  local token, sequence = pawl_parse(pawl_seen)
  if not token or not sequence then return redis.error_reply('PAWLMARK ' .. KEYS[1] .. ' holds no mark') end
  pawl_newer = pawl_token > token
  pawl_above = pawl_newer or pawl_token == token and pawl_sequence > sequence
  local joins = ARGV[2] == 'shared' and pawl_token == token
  if not pawl_above and not joins then return {'stale', pawl_seen} end
end
if pawl_newer and ARGV[2] == 'exclusive' then
  redis.call('SET', KEYS[1], string.match(ARGV[1], '^%d+') .. '.0')
elseif pawl_above and ARGV[2] == 'shared' then
  redis.call('SET', KEYS[1], ARGV[1])
end
local pawl_keys, pawl_args = {}, {}
for i = 2, #KEYS do pawl_keys[i - 1] = KEYS[i] end
for i = 3, #ARGV do pawl_args[i - 2] = ARGV[i] end
local function pawl_write(KEYS, ARGV)
`
	after = `
end
local pawl_answer = pawl_write(pawl_keys, pawl_args)
if type(pawl_answer) == 'table' and pawl_answer.err then return pawl_answer end
if pawl_above and ARGV[2] == 'exclusive' then redis.call('SET', KEYS[1], ARGV[1]) end
return {'done', pawl_answer}
`
)

// Check refuses the stamp with a *fence.StaleError, or makes it the mark. Between Check and a write
// that follows, a newer holder may come: use Set or Run for writes.
func Check(ctx context.Context, eval Eval, mark string, stamp fence.Stamp) error {
	_, err := Run(ctx, eval, mark, stamp, "return 1", nil)
	return err
}

// Set writes a string value, as SET key value does. Errors are those of Run; as SET cannot fail
// halfway, mark and value are written together.
func Set(ctx context.Context, eval Eval, mark string, stamp fence.Stamp, key, value string) error {
	_, err := Run(ctx, eval, mark, stamp, "return redis.call('SET', KEYS[1], ARGV[1])", []string{key}, value)
	return err
}

// Run runs the caller's Lua script if the stamp is allowed, in the same step, and gives what it
// returned (nil for false and nil). The script finds keys and args in KEYS and ARGV. Errors are a
// *fence.StaleError, fence.ErrInvalid, or those of eval: after a lost connection nobody knows
// whether it ran. A script that fails halfway is not rolled back: what it wrote before remains,
// older holders are kept out, and its stamp may be used again, which runs it from the beginning.
func Run(ctx context.Context, eval Eval, mark string, stamp fence.Stamp, script string, keys []string, args ...any) (any, error) {
	if err := stamp.Validate(); err != nil {
		return nil, err
	}
	kind := "exclusive"
	if stamp.Shared {
		kind = "shared"
	}
	answer, err := eval(ctx, before+script+after, append([]string{mark}, keys...), append([]any{stamp.String(), kind}, args...)...)
	if err != nil {
		return nil, fmt.Errorf("writing with stamp %v under mark %q: %w", stamp, mark, err)
	}
	parts, _ := answer.([]any)
	if len(parts) == 0 {
		return nil, fmt.Errorf("mark %q: the answer %v is not this script's", mark, answer)
	}
	switch word := text(parts[0]); {
	case word == "done" && len(parts) == 1: // Redis ends a list at its first nil
		return nil, nil
	case word == "done":
		return parts[1], nil
	case word == "stale" && len(parts) == 2:
		newest, err := parse(text(parts[1]))
		if err != nil {
			return nil, fmt.Errorf("mark %q: %w", mark, err)
		}
		return nil, &fence.StaleError{Offered: stamp, Newest: newest}
	}
	return nil, fmt.Errorf("mark %q: the answer %v is not this script's", mark, answer)
}

// Newest gives the mark, zero when nothing was seen. Its sequence is 0 when a newer holder came and
// none of its writes was done yet.
func Newest(ctx context.Context, eval Eval, mark string) (fence.Stamp, error) {
	answer, err := eval(ctx, "return redis.call('GET', KEYS[1]) or ''", []string{mark})
	if err != nil {
		return fence.Stamp{}, fmt.Errorf("reading mark %q: %w", mark, err)
	}
	seen := text(answer)
	if seen == "" {
		return fence.Stamp{}, nil
	}
	newest, err := parse(seen)
	if err != nil {
		return fence.Stamp{}, fmt.Errorf("mark %q: %w", mark, err)
	}
	return newest, nil
}

// parse reads a mark: a stamp, or "41.0".
func parse(mark string) (fence.Stamp, error) {
	token, undone := strings.CutSuffix(mark, ".0")
	if !undone {
		return fence.Parse(mark)
	}
	newest, err := fence.Parse(token + ".1")
	newest.Sequence = 0
	return newest, err
}

// text takes strings as the client libraries give them.
func text(answer any) string {
	switch s := answer.(type) {
	case string:
		return s
	case []byte:
		return string(s)
	}
	return ""
}
