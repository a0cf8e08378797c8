package replica

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
)

// The parts of bbolt's file format (version 2) that are needed to tell whether its reader would trip over a file.
const (
	boltMagic     = 0xED0CDAED
	boltVersion   = 2
	boltMetaSize  = 64 // magic, version, page size, flags, root (page, sequence), freelist, end, transaction, checksum
	boltHeader    = 16 // id u64, flags u16, count u16, overflow u32
	boltElement   = 16 // of branch and leaf pages alike
	boltNoList    = ^uint64(0)
	boltBranch    = 0x01
	boltLeaf      = 0x02
	boltList      = 0x10
	boltSubBucket = 0x01 // flag of a leaf element whose value is a bucket

	boltMaxDepth = 64
	// boltMaxSlack is how far a healthy file may reach past its last page: bbolt grows it 16 MiB ahead, and a
	// transaction that was not finished may have grown it more.
	boltMaxSlack = 1 << 30
)

// boltWalk reads the pages that a bbolt file reaches, without mapping it.
type boltWalk struct {
	file     io.ReaderAt
	pageSize uint64
	end      uint64 // pages in use: every page number is below it
	seen     []uint64
}

// checkPages says whether every page that can be reached from the newest valid meta page is where and what it should be.
// It cannot see a changed byte inside a key or value: bbolt has no checksums; entries carry their own (R2).
func checkPages(file *os.File) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	size := uint64(info.Size())
	meta, err := readMeta(file, size)
	if err != nil {
		return err
	}
	used := meta.end * meta.pageSize
	switch {
	case meta.end < 3 || meta.end > size/meta.pageSize:
		return fmt.Errorf("%d bytes are too few for its %d pages: it was cut short", size, meta.end)
	case size > 2*used+boltMaxSlack:
		return fmt.Errorf("%d bytes are far too many for its %d pages", size, meta.end)
	}
	w := &boltWalk{file: file, pageSize: meta.pageSize, end: meta.end, seen: make([]uint64, meta.end/64+1)}
	if meta.freelist != boltNoList {
		if _, err := w.read(meta.freelist, boltList); err != nil {
			return fmt.Errorf("list of free pages: %w", err)
		}
	}
	return w.bucket(meta.root, 0)
}

type boltMeta struct{ pageSize, root, freelist, end, transaction uint64 }

// readMeta gives the newer valid one of the two meta pages, as bbolt does: one may be torn by a crash.
func readMeta(file io.ReaderAt, size uint64) (newest boltMeta, err error) {
	found := false
	try := func(offset uint64) {
		meta, ok := readMetaAt(file, offset)
		if ok && (offset == 0 || offset == meta.pageSize) && (!found || meta.transaction > newest.transaction) {
			newest, found = meta, true
		}
	}
	try(0)
	for pageSize := uint64(1024); pageSize <= 1<<16; pageSize *= 2 {
		try(pageSize)
	}
	switch {
	case !found && size < 2*4096:
		return newest, fmt.Errorf("%d bytes are too few for a log store", size)
	case !found:
		return newest, errors.New("neither of its two first pages is that of a log store")
	}
	return newest, nil
}

func readMetaAt(file io.ReaderAt, offset uint64) (meta boltMeta, ok bool) {
	b := make([]byte, boltHeader+boltMetaSize)
	if _, err := file.ReadAt(b, int64(offset)); err != nil {
		return meta, false
	}
	b = b[boltHeader:]
	order := binary.NativeEndian
	sum := fnv.New64a()
	_, _ = sum.Write(b[:56])
	if order.Uint32(b) != boltMagic || order.Uint32(b[4:]) != boltVersion || order.Uint64(b[56:]) != sum.Sum64() {
		return meta, false
	}
	meta = boltMeta{
		pageSize: uint64(order.Uint32(b[8:])), root: order.Uint64(b[16:]), freelist: order.Uint64(b[32:]),
		end: order.Uint64(b[40:]), transaction: order.Uint64(b[48:]),
	}
	return meta, meta.pageSize >= 1024 && meta.pageSize <= 1<<16 && meta.end < 1<<40
}

// read gives the whole of one page with its overflow, which must have one of these flags and must not be used twice.
func (w *boltWalk) read(page uint64, flags ...uint16) ([]byte, error) {
	if page < 2 || page >= w.end {
		return nil, fmt.Errorf("page %d does not exist", page)
	}
	header := make([]byte, boltHeader)
	if _, err := w.file.ReadAt(header, int64(page*w.pageSize)); err != nil {
		return nil, fmt.Errorf("reading page %d: %w", page, err)
	}
	order := binary.NativeEndian
	overflow := uint64(order.Uint32(header[12:]))
	if order.Uint64(header) != page || overflow >= w.end-page {
		return nil, fmt.Errorf("page %d is not what it says", page)
	}
	if !containsFlag(flags, order.Uint16(header[8:])) {
		return nil, fmt.Errorf("page %d is of the wrong kind", page)
	}
	for p := page; p <= page+overflow; p++ {
		if w.seen[p/64]&(1<<(p%64)) != 0 {
			return nil, fmt.Errorf("page %d is used twice", p)
		}
		w.seen[p/64] |= 1 << (p % 64)
	}
	b := make([]byte, (overflow+1)*w.pageSize)
	if _, err := w.file.ReadAt(b, int64(page*w.pageSize)); err != nil {
		return nil, fmt.Errorf("reading page %d: %w", page, err)
	}
	return b, nil
}

func containsFlag(flags []uint16, flag uint16) bool {
	for _, f := range flags {
		if f == flag {
			return true
		}
	}
	return false
}

func (w *boltWalk) bucket(page uint64, depth int) error {
	if depth > boltMaxDepth {
		return fmt.Errorf("page %d is nested too deeply", page)
	}
	b, err := w.read(page, boltBranch, boltLeaf)
	if err != nil {
		return err
	}
	if err := w.elements(b, depth); err != nil {
		return fmt.Errorf("page %d: %w", page, err)
	}
	return nil
}

// elements checks the elements of one branch or leaf page and what is below them.
func (w *boltWalk) elements(b []byte, depth int) error {
	order := binary.NativeEndian
	leaf := order.Uint16(b[8:]) == boltLeaf
	count := int(order.Uint16(b[10:]))
	if count == 0 && !leaf {
		return errors.New("a branch without branches")
	}
	if boltHeader+count*boltElement > len(b) {
		return fmt.Errorf("%d elements do not fit", count)
	}
	var previous []byte
	for i := range count {
		at := boltHeader + i*boltElement
		element := b[at:]
		// branch: position u32, key size u32, page u64; leaf: flags u32, position u32, key size u32, value size u32
		position, keySize, valueSize := uint64(order.Uint32(element)), uint64(order.Uint32(element[4:])), uint64(0)
		if leaf {
			position, keySize, valueSize = keySize, uint64(order.Uint32(element[8:])), uint64(order.Uint32(element[12:]))
		}
		start := uint64(at) + position
		if start+keySize+valueSize > uint64(len(b)) {
			return fmt.Errorf("element %d reaches past the page", i)
		}
		key, value := b[start:start+keySize], b[start+keySize:start+keySize+valueSize]
		if i > 0 && bytes.Compare(previous, key) >= 0 {
			return fmt.Errorf("element %d is out of order", i)
		}
		previous = key
		var err error
		switch {
		case !leaf:
			err = w.bucket(order.Uint64(element[8:]), depth+1)
		case order.Uint32(element)&boltSubBucket != 0:
			err = w.subBucket(value, depth+1)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// subBucket checks a bucket that is the value of an element: a page number and a sequence, and for a small one its only
// page in place.
func (w *boltWalk) subBucket(value []byte, depth int) error {
	if len(value) < 16 {
		return errors.New("a bucket is cut short")
	}
	if root := binary.NativeEndian.Uint64(value); root != 0 {
		return w.bucket(root, depth)
	}
	inline := value[16:]
	if len(inline) < boltHeader || binary.NativeEndian.Uint16(inline[8:]) != boltLeaf {
		return errors.New("a small bucket is not a leaf")
	}
	return w.elements(inline, depth)
}
