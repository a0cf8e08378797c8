// Package sqlfence fences writes to PostgreSQL, MySQL or MariaDB, and SQLite
// through database/sql. It needs no particular driver.
//
// There are two ways, for two shapes of data:
//
//   - What a lock protects is one row: [Guard.Update] and [Guard.Put] write it together with the
//     stamp, in columns of its own, on the condition that the stamp is allowed.
//   - What a lock protects is more than a row: [Guard.Check] compares the stamp with
//     a mark in a table of marks, inside the caller's transaction, and holds the mark's row
//     until the transaction ends. What else the transaction writes is kept or undone together with the mark.
//
// And [Guard.Once] marks an operation as done in the transaction that does it, so that
// the next holder does not repeat what its predecessor has finished before it died.
//
// # Transactions
//
// Check belongs at the beginning. From then on transactions under one name are one after the other,
// at every isolation level. Database errors are handed on as they are, also those after which a
// transaction is tried again as a whole: PostgreSQL's serialization failure (SQLSTATE 40001) and both
// servers' deadlock (40P01; 1213), MySQL's lock timeout (1205), SQLite's busy. Nothing of a
// transaction that was rolled back is left, so its stamp may be used again. After a commit whose
// answer was lost it must be used again, not a new one: if it was done, the answer is a
// *fence.StaleError that says Repeated.
//
// With SQLite, begin with BEGIN IMMEDIATE (the DSN parameter _txlock=immediate of the common
// drivers) and a busy timeout: a transaction that has only read so far cannot wait for a writer.
//
// # What it cannot guarantee
//
// Only statements that go through the guard, or carry its condition, are fenced: every writer must.
// A holder that is suspended in the middle of a transaction keeps the mark's row locked, and the next
// one waits although it holds the lock: bound that with the database's own idle timeout for transactions. A
// database that is restored from a backup, or a replica promoted without the last commits, has forgotten the newest
// marks and lets older stamps in again. When a fenced row is deleted its stamp is gone with it. And the transaction's
// reads are as fresh as the isolation level makes them, not fresher.
package sqlfence
