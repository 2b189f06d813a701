package keys

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Paths are the paths of the files with key material. They may be in different directories.
type Paths struct {
	// CA is the path of the bundle of trusted CAs. Empty: no bundle.
	CA string
	// Certificate is the path of the chain, leaf first, and Key is the path of its private key.
	// Both empty: no certificate.
	Certificate, Key string
}

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

type snapshot struct{ ca, cert, key []byte }

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

// errChanging means that no two readings in a row were equal. Its [Problem] is "unreadable".
var errChanging = errors.New("keys: the files changed while they were being read: want two identical reads in a row")

// readStable reads the files once if they equal known, else until they are stable.
func (p Paths) readStable(known snapshot) (snapshot, error) {
	if files, err := p.readOnce(); err == nil && files.equal(known) {
		return files, nil
	}
	return settled(p.readOnce)
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
	files.ca, err = readFile(p.CA)
	if err != nil {
		return snapshot{}, err
	}
	files.cert, err = readFile(p.Certificate)
	if err != nil {
		return snapshot{}, err
	}
	files.key, err = readFile(p.Key)
	if err != nil {
		return snapshot{}, err
	}

	return files, nil
}

// readFile returns nil without a path, and an error for a file that it cannot read.
func readFile(path string) ([]byte, error) {
	if path == "" {
		return nil, nil
	}

	file, err := os.Open(filepath.Clean(path))
	if err != nil {
		return nil, &materialError{file: path, problem: ProblemUnreadable, err: err}
	}
	defer file.Close()

	content, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err == nil && len(content) > maxFile {
		err = fmt.Errorf("more than %d bytes", maxFile)
	}
	if err != nil {
		return nil, &materialError{file: path, problem: ProblemUnreadable, err: err}
	}

	return content, nil
}
