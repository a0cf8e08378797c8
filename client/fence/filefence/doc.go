// Package filefence fences a file that several processes of one machine replace: mark and content
// are in one file and are replaced together, so that a crash at any moment leaves the old ones or
// the new ones, whole.
//
//	err := filefence.Write(ctx, "/var/lib/report/today", stamps.Next(), content)
//
// The file begins with one line: its format, the mark, the length of the content and a checksum
// over all of it; the content follows as it is. Read checks them. Writers take turns by flock on a
// file beside it (".lock" is appended), write to another (".new"), sync it, rename it over the file
// and sync the directory.
//
// What it cannot guarantee: who writes the file without this package is not fenced, and removing
// the file, or restoring an old copy of it, forgets the mark. A writer that is suspended in the
// middle of a write keeps the others waiting until it goes on or is killed: they give up when their
// context ends, and nothing is overwritten. After an error from syncing the directory the new
// content is there, but may be gone after a crash of the machine. File systems on which flock holds
// for one machine only (some network file systems), rename is not atomic or sync does not sync give
// less; a torn file is then noticed, and refused until somebody repairs it. It needs a Unix system:
// elsewhere the package is empty.
package filefence
