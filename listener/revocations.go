package listener

import (
	"fmt"
	"io/fs"
	"os"
	"sync"

	"github.com/runtime-watcher/runtime-watcher/core/intake"
)

// RevocationFile is the list of revoked senders in a file. [RevocationsFromFile] makes it. Its
// methods may be called concurrently.
type RevocationFile struct {
	*intake.LiveRevocations

	path string

	mu   sync.Mutex // held while the file is read
	last fs.FileInfo
}

var (
	_ intake.Revocations         = (*RevocationFile)(nil)
	_ intake.RevocationRefresher = (*RevocationFile)(nil)
)

// RevocationsFromFile returns the list of revoked senders in a file, in the format of
// [intake.ParseRevocations]. A running listener or consumer reads the file ten times a second.
// Replace the file by renaming another file, as a kubelet does, so that the listener never reads a
// partial list. A kubelet updates a volume about once a minute; RevocationsFromConfigMap of
// adapters/controllerruntime takes less than a second.
//
// It fails if the file is missing or malformed. If the file later becomes missing or malformed, the
// problem is logged and the last valid list stays in use. To end all revocations, empty the file.
func RevocationsFromFile(path string, opts intake.RevocationOptions) (*RevocationFile, error) {
	r := &RevocationFile{LiveRevocations: intake.NewLiveRevocations(opts), path: path}
	if err := r.readFile(); err != nil {
		return nil, fmt.Errorf("revocations: %w", err)
	}
	return r, nil
}

// RefreshRevocations implements [intake.RevocationRefresher]. It reads the file again if it has
// changed.
func (r *RevocationFile) RefreshRevocations() {
	_ = r.readFile() // It is logged, and the last good list stays.
}

// readFile reads the file if it has changed. A file that is missing, or cannot be read, leaves the
// last good list in use.
func (r *RevocationFile) readFile() error {
	r.mu.Lock()
	defer r.mu.Unlock()

	info, err := os.Stat(r.path)
	if err != nil {
		r.last = nil
		r.Fail(err)
		return err
	}

	if r.isLast(info) {
		return nil
	}

	text, err := os.ReadFile(r.path)
	if err != nil {
		r.Fail(err)
		return err
	}

	err = r.Replace(text)
	if err != nil {
		err = fmt.Errorf("%s: %w", r.path, err)
	}
	r.last = info
	return err
}

// isLast reports whether the file has not changed since it was read.
func (r *RevocationFile) isLast(info fs.FileInfo) bool {
	if r.last == nil {
		return false
	}
	isSameContent := r.last.ModTime().Equal(info.ModTime()) && r.last.Size() == info.Size()
	return os.SameFile(r.last, info) && isSameContent
}
