//go:build unix

package filefence

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/pawl-lock/pawl/client/fence"
)

// MaxContent bounds the content of a file, in bytes: it is held in memory.
const MaxContent = 64 << 20

// ErrDamaged: the file is not, or not wholly, what Write has written. Nothing overwrites it, since
// its mark is not known: somebody must repair or remove it.
var ErrDamaged = errors.New("filefence: the file is damaged or was not written by this package")

// ErrTooLarge: the content is larger than MaxContent.
var ErrTooLarge = errors.New("filefence: the content is too large")

// Read gives content and mark of a file; an error that matches fs.ErrNotExist where there is none,
// or ErrDamaged. It waits for nobody: a write going on is not seen before it is done.
func Read(path string) (content []byte, mark fence.Stamp, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fence.Stamp{}, err
	}
	defer file.Close() //nolint:errcheck // nothing was written
	whole, err := io.ReadAll(io.LimitReader(file, maxHeader+MaxContent+1))
	if err != nil {
		return nil, fence.Stamp{}, err
	}
	content, mark, err = decode(whole)
	if err != nil {
		return nil, fence.Stamp{}, fmt.Errorf("%s: %w", path, err)
	}
	return content, mark, nil
}

// Write replaces the content if the stamp is allowed; see Update.
func Write(ctx context.Context, path string, stamp fence.Stamp, content []byte) error {
	return Update(ctx, path, stamp, func([]byte) ([]byte, error) { return content, nil })
}

// Update replaces the content by what change makes of it (of nil when there is no file yet), if the
// stamp is allowed; no other process writes meanwhile. The path's directory must exist, and nobody
// may use another name of the file: a symbolic link is refused. It blocks until others have written
// or ctx ends. Errors: a *fence.StaleError, fence.ErrInvalid, ErrDamaged, ErrTooLarge, the
// context's, change's own, or those of the file system. After any of them the old content is there,
// except when syncing the directory failed.
func Update(ctx context.Context, path string, stamp fence.Stamp, change func(old []byte) ([]byte, error)) error {
	if err := stamp.Validate(); err != nil {
		return err
	}
	unlock, err := lock(ctx, path+".lock")
	if err != nil {
		return fmt.Errorf("waiting for the writers of %s: %w", path, err)
	}
	defer unlock()
	mode := fs.FileMode(0)
	var old []byte
	var newest fence.Stamp
	switch info, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is not a regular file", path)
	default:
		mode = info.Mode().Perm()
		if old, newest, err = Read(path); err != nil {
			return err
		}
	}
	if err := stamp.Allowed(newest); err != nil {
		return err
	}
	if stamp.Above(newest) { // a shared one may be allowed without being above
		newest = stamp
	}
	content, err := change(old)
	if err != nil {
		return err
	}
	if len(content) > MaxContent {
		return fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, len(content), MaxContent)
	}
	return replace(path, mode, encode(newest, content))
}

// replace writes the whole file beside the old one and renames it. The name beside is always the
// same one, so that those who are killed leave no more than one behind.
func replace(path string, mode fs.FileMode, whole []byte) (err error) {
	beside := path + ".new"
	if err := os.Remove(beside); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	file, err := os.OpenFile(beside, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666) // less the umask
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(beside)
		}
	}()
	_, err = file.Write(whole)
	if err == nil && mode != 0 {
		err = file.Chmod(mode)
	}
	if err == nil {
		err = file.Sync() // before the rename: the name must never stand for what is not on disk
	}
	if closing := file.Close(); err == nil {
		err = closing
	}
	if err == nil {
		err = os.Rename(beside, path)
	}
	if err != nil {
		return err
	}
	directory, err := os.Open(filepath.Dir(path))
	if err == nil {
		err = directory.Sync()
		_ = directory.Close()
	}
	if err != nil {
		return fmt.Errorf("%s is replaced, but may not survive a crash: %w", path, err)
	}
	return nil
}

const (
	format    = "pawl-fence/1"
	maxHeader = 256 // bytes, with the line's end; the longest that encode makes has less than 130
)

// encode makes "pawl-fence/1 41.7 LENGTH SHA256\n" and the content. The checksum covers the mark,
// too.
func encode(mark fence.Stamp, content []byte) []byte {
	line := fmt.Sprintf("%s %v %d", format, mark, len(content))
	whole := make([]byte, 0, len(line)+2+2*sha256.Size+len(content))
	whole = fmt.Appendf(whole, "%s %s\n", line, checksum(line, content))
	return append(whole, content...)
}

func decode(whole []byte) ([]byte, fence.Stamp, error) {
	line, _, found := bytes.Cut(whole[:min(len(whole), maxHeader)], []byte("\n"))
	if !found {
		return nil, fence.Stamp{}, ErrDamaged
	}
	content := whole[len(line)+1:]
	fields := bytes.Split(line, []byte(" "))
	if len(fields) != 4 || string(fields[0]) != format {
		return nil, fence.Stamp{}, ErrDamaged
	}
	mark, err := fence.Parse(string(fields[1]))
	if err != nil || string(fields[2]) != strconv.Itoa(len(content)) {
		return nil, fence.Stamp{}, ErrDamaged
	}
	if string(fields[3]) != checksum(string(line[:bytes.LastIndexByte(line, ' ')]), content) {
		return nil, fence.Stamp{}, ErrDamaged
	}
	return content, mark, nil
}

func checksum(line string, content []byte) string {
	hash := sha256.New()
	_, _ = io.WriteString(hash, line+"\n")
	_, _ = hash.Write(content)
	return hex.EncodeToString(hash.Sum(nil))
}
