package keys

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Paths are the paths of the files with key material. They may be in different directories.
type Paths struct {
	// CA is the bundle of trusted CAs. Empty: no bundle.
	CA string
	// Certificate is the chain, leaf first, and Key is its private key. Both empty: no certificate.
	Certificate, Key string
}

// validate reports a certificate without a key, a key without a certificate, and no path at all.
func (p Paths) validate() error {
	switch {
	case (p.Certificate == "") != (p.Key == ""):
		return fmt.Errorf("keys: certificate %q and key %q: want both or none", p.Certificate, p.Key)
	case p.CA == "" && p.Certificate == "":
		return errors.New("keys: no key material: want a CA bundle, or a certificate and its key, or all three")
	default:
		return nil
	}
}

// snapshot is the content of the files at one moment.
type snapshot struct{ ca, cert, key []byte }

// equal compares the content.
func (s snapshot) equal(other snapshot) bool {
	return bytes.Equal(s.ca, other.ca) && bytes.Equal(s.cert, other.cert) && bytes.Equal(s.key, other.key)
}

// Limits of reading.
const (
	// maxFile bounds the size of a file. No bundle is that large.
	maxFile = 1 << 20
	// readAttempts bounds the pairs of readings of files that keep changing.
	readAttempts = 5
)

// errChanging means that no two readings in a row were equal.
var errChanging = errors.New("the files change while they are read, want two equal readings")

// read returns the content of the files at one moment. For files that equal known, one reading is
// enough.
func (p Paths) read(known snapshot) (snapshot, error) {
	if files, err := p.readOnce(); err == nil && files.equal(known) {
		return files, nil
	}
	files, err := settled(p.readOnce)
	if errors.Is(err, errChanging) {
		err = &materialError{file: cmp.Or(p.Certificate, p.CA), problem: problemUnreadable, err: err}
	}
	return files, err
}

// settled reads until two readings in a row are equal. No file changed between them, so the files
// of two generations never mix.
func settled(read func() (snapshot, error)) (snapshot, error) {
	for range readAttempts {
		first, firstErr := read()
		second, secondErr := read()
		switch {
		case firstErr == nil && secondErr == nil && first.equal(second):
			return first, nil
		case firstErr != nil && secondErr != nil && firstErr.Error() == secondErr.Error():
			return snapshot{}, firstErr
		}
	}
	return snapshot{}, errChanging
}

// readOnce reads each file once. The result may mix two generations.
func (p Paths) readOnce() (files snapshot, err error) {
	if files.ca, err = readFile(p.CA); err != nil {
		return snapshot{}, err
	}
	if files.cert, err = readFile(p.Certificate); err != nil {
		return snapshot{}, err
	}
	if files.key, err = readFile(p.Key); err != nil {
		return snapshot{}, err
	}
	return files, nil
}

// readFile returns nil without a path, and an error for a file that it cannot read.
func readFile(path string) ([]byte, error) {
	if path == "" {
		return nil, nil
	}
	content, err := readBounded(path)
	if err != nil {
		return nil, &materialError{file: path, problem: problemUnreadable, err: err}
	}
	return content, nil
}

// readBounded reads a file of at most maxFile bytes.
func readBounded(path string) ([]byte, error) {
	file, err := os.Open(filepath.Clean(path))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err == nil && len(content) > maxFile {
		err = fmt.Errorf("more than %d bytes", maxFile)
	}
	return content, err
}
