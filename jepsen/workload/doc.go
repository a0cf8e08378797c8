// Package workload is what clients do in a run, and which checkers judge it.
//
// # What a history of each workload looks like
//
// Everywhere: a hold is believed from its OK acquire (Lock, Token, Mode, Limit; of
// several Locks) to the Invoke of its release, or to the Lease of its Lost op, whichever comes first. Lease says until when its
// holder believed to hold it: in virtual time that is the very end of the lock's
// context, elsewhere the last moment at which the holder asked and was told that it holds. A process has at most one
// hold. An acquire that is Fail left nothing behind that anybody believes in (the
// server may have granted it for a moment and taken it back). A release that is Info
// may happen at any later time; belief has ended all the same. Times are the
// cluster's.
//
//	mutex      acquire, release, lost; exclusive locks, some waits, some tries
//	rw         the same, Mode shared or exclusive, and convert (Token = before; OK: Token = after, Mode = the new one; Fail: held as before)
//	semaphore  the same, Mode shared and Limit
//	fenced     mutex, and under each hold one read (OK: Value) and one write (Previous = what was read,
//	           Value = unique in the run), both stamped with (Token, Sequence) of the hold; a stale stamp is Fail
//	           with Error "stale". Register = the lock's name. Values begin at 0. Final (Lock) OK: Value.
//	unfenced   the same without the check of the stamp: updates get lost under client pauses
//	lockset    mutex, and under each hold one add (Value unique, read-modify-write of the whole set under a
//	           stamp). Final (Lock) OK: Values.
//	several    acquire with Locks (two accounts, or all); transfer (Value = amount, Note "a>b") under two;
//	           read (Values = all balances) under all. Final OK: Values. The sum never changes: 100 for each account.
//	fair       queue (OK: Token when granted at once, else it stands in the queue from here on; Log = the answer's
//	           index), then acquire (the wait for it: OK Token), release. Whoever was told its place before
//	           another asked must be granted before it. Session and Request are set.
//	sessions   open (OK: Session, Lease), acquire and renew (OK: Lease = until when the session's holds may be believed,
//	           counted from before the call was sent less 0.2 %), release, close (F, by Session; it ends a hold too), stray (a release
//	           with the Token of another grant: OK is a fault). An acquire that is Info with Note "silent" is the last of its
//	           session, whose client went away while it waited. Fail renew with Error "session_gone"
//	           before the last Lease is a fault. Some sessions fall silent: the next holder must
//	           come after Lease and not much later than TTL (Note "ttl=2s" of open) + gaps.
//	requests   acquire, release, cancel with Session and Request, each possibly sent several times, late and to
//	           several nodes: each sending is an operation of its own process. OK acquires of one (Session, Request) have
//	           the same Token, and none is OK after a release or cancel of it was OK.
//	election   mutex, by client.Election: a release may be a hand-over (Note "to candidate1")
//	reads      mutex, and look (OK: Token of the holder, 0 when free; Log = the answer's index)
//
// In the requests workload an acquire that is Fail without an Error has its place in the queue, and was not granted by this message.
//
// At the end of every run: Heal, then Final of each lock in turn (Note history.Free: an acquire and release by a client that
// did not take part, with a limit: Fail when it did not get the lock), the workload's own Finals, then Digest of each node (Node,
// Log = index, Note = digest).
package workload
