// Package objectfence fences objects in a store with conditional writes, such as Amazon S3: the
// mark is in the object's metadata, and a write replaces the object only if it is still the one
// whose mark was compared (If-Match, or If-None-Match: * for the first).
//
//	objects := objectfence.Objects{Bucket: objectfence.HTTP{URL: "https://bucket.example", Client: signing}}
//	err := objects.Write(ctx, "report/today", stamps.Next(), content)
//
// # Why the content has a first line
//
// S3's ETag is made from the content, not from the metadata. So when the new holder writes the same
// content as was there, the ETag stays, and the old holder, which compared before that, would
// overwrite the object with the old mark. (A test shows it.) Therefore each object begins with a
// line that no other write has: its mark and a random number. Read takes it off. Where each write
// gives another ETag whatever it writes, Objects.Plain leaves the line out.
//
// # What it cannot guarantee
//
// Who writes or deletes objects without this package is not fenced, and a deleted object has no
// mark: write an empty one instead. A copy that drops the metadata is refused until somebody
// decides (Objects.Adopt). Stores that take If-Match without comparing (older S3-compatible ones
// ignore it) protect nothing: try it, with two writes under one ETag. Objects in versioned buckets
// keep their older versions, which anybody may restore. It compares one object at a time: several
// are not written together.
package objectfence
