// Package record stores the actions of an operator under test in a file, which outlives its
// process.
package record

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/runtime-watcher/runtime-watcher/core/fleet"
)

// Entry is one line: a reconcile, a delivery, or a status.
type Entry struct {
	Look     *Look     `json:"look,omitempty"`
	Delivery *Delivery `json:"delivery,omitempty"`
	Status   *Status   `json:"status,omitempty"`
}

// Status is the report of an operator about itself, memory in bytes.
type Status struct {
	Leading bool `json:"leading"`
	// Runtimes contains the number of runtimes in each state of freshness.
	Runtimes map[fleet.State]int `json:"runtimes"`
	// Resyncs contains the number of resyncs by cause. The cause of resyncs that agents send is
	// "agent".
	Resyncs map[string]int64 `json:"resyncs"`
	// ToCome is the number of resyncs that the fleet has not delivered yet.
	ToCome int    `json:"toCome"`
	Heap   uint64 `json:"heap"`
	Stack  uint64 `json:"stack"`
}

// Look is one reconcile that has read the requested state.
type Look struct {
	// Runtime is the object in the control plane that represents the runtime.
	Runtime string `json:"runtime"`
	// Object is the only object that was read. It is empty if all objects of the runtime were read.
	Object string `json:"object,omitempty"`
	// Started is the time at which the reconcile began, before it read anything: see [Now].
	Started time.Duration `json:"started"`
	// Versions are the resource versions of the objects that were found, by name.
	Versions map[string]string `json:"versions"`
}

// Delivery is one delivery from the listener to the operator.
type Delivery struct {
	// Kind is the kind of the event.
	Kind string `json:"kind"`
	// Object is the name of the object of the event, if the event is about an object.
	Object string `json:"object,omitempty"`
	// At is the time at which the event was handled: see [Now].
	At time.Duration `json:"at"`
	// Refused is the reason why the event was refused.
	Refused string `json:"refused,omitempty"`
}

// Now is a clock that all processes of a machine share, and that is never set (clock_gettime,
// CLOCK_MONOTONIC).
func Now() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic(err) // There is no such system.
	}
	return time.Duration(now.Nano())
}

// Writer appends entries to a file. When Write has returned, the system has the entry, so the end
// of the process does not lose it.
type Writer struct {
	mu   sync.Mutex
	file *os.File
}

// NewWriter opens a file for appending.
func NewWriter(path string) (*Writer, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("record: %w", err)
	}
	return &Writer{file: file}, nil
}

// Write appends one entry, in one call of the system.
func (w *Writer) Write(entry Entry) error {
	line, err := json.Marshal(entry)
	if err != nil {
		return fmt.Errorf("record: %w", err)
	}

	w.mu.Lock()
	defer w.mu.Unlock()

	_, err = w.file.Write(append(line, '\n'))
	return err
}

// Reader follows a file to which other processes append.
type Reader struct {
	path   string
	offset int64
}

// NewReader returns a reader from the beginning of a file, which need not exist yet.
func NewReader(path string) *Reader { return &Reader{path: path} }

// Next returns the entries that are new since the last call. A line that is not complete is left
// for a later call. If its writer was killed while it wrote the line, the next entry begins in the
// middle of the line, and both are ignored.
func (r *Reader) Next() ([]Entry, error) {
	file, err := os.Open(r.path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("record: %w", err)
	}
	defer file.Close() // It was only read.

	if _, err := file.Seek(r.offset, io.SeekStart); err != nil {
		return nil, fmt.Errorf("record: %w", err)
	}

	return r.read(bufio.NewReader(file))
}

func (r *Reader) read(from *bufio.Reader) (entries []Entry, err error) {
	for {
		line, err := from.ReadBytes('\n')
		if err != nil {
			return entries, nil //nolint:nilerr // The end, for now.
		}

		r.offset += int64(len(line))
		var entry Entry
		if json.Unmarshal(bytes.TrimSpace(line), &entry) == nil {
			entries = append(entries, entry)
		}
	}
}
