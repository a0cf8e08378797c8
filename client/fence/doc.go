// Package fence is for the side that is written to: the rule by which a resource
// refuses a holder whose lock has gone to somebody else, and the stamps that
// holders send along with their writes.
//
// # The rule
//
// A [Stamp] is a token and a sequence number. The resource keeps the newest one
// that it has seen, its mark, and compares, in one step with the write:
//
//   - An exclusive stamp must be above the mark: a larger token, or the same token
//     and a larger sequence. So one holder can write many times, and a write that
//     is repeated, or overtaken by a later one of the same holder, is refused.
//   - A shared stamp has no sequence: its token must not be below the mark's. The
//     holders of one shared period have one token and are not told apart (R6).
//
// What is refused gets a [*StaleError], which has both stamps. The rule is written
// once in Go, in [Stamp.Allowed], and once in each kit in the language of its storage.
//
// A holder makes its stamps with one [Stamper] for each hold:
//
//	stamps := fence.NewStamper(lock)
//	err := guard.Check(ctx, tx, "account/7", stamps.Next())
//
// # What it cannot guarantee
//
// The mark protects what is written in one step with its check, and nothing else. A
// resource that is written to beside its kit, or whose mark is lost or restored from
// an old copy, is not protected. Stamps are not secret and prove nothing about who
// sent them. And a mark knows what it has seen: until the new holder's first write
// arrives, one of the old holder's that was late is still accepted, which is the same
// as if it had been in time, unless the new holder has read meanwhile. So move the mark on
// before reading, in one step with it: a value computed from an earlier read is not protected.
package fence
