package apiserver

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/runtime-watcher/runtime-watcher/test/lab/program"
)

// logs are the files that the two processes write to. Files, not pipes: they need no reader, and
// they stay after this process.
type logs struct {
	apiServer, etcd *os.File
}

// openLogs creates the files in dir, or in fallback when dir is empty.
func openLogs(dir, fallback string) (*logs, error) {
	if dir == "" {
		dir = fallback
	}
	apiServer, err := os.Create(filepath.Join(dir, "kube-apiserver.log"))
	if err != nil {
		return nil, fmt.Errorf("log: %w", err)
	}
	etcd, err := os.Create(filepath.Join(dir, "etcd.log"))
	if err != nil {
		_ = apiServer.Close()
		return nil, fmt.Errorf("log: %w", err)
	}
	return &logs{apiServer: apiServer, etcd: etcd}, nil
}

func (l *logs) close() {
	_ = l.apiServer.Close()
	_ = l.etcd.Close()
}

// tail is the end of each log that is not empty, for an error message.
func (l *logs) tail() string {
	var out strings.Builder
	for _, f := range []*os.File{l.etcd, l.apiServer} {
		content, err := os.ReadFile(f.Name())
		if err == nil && len(content) > 0 {
			fmt.Fprintf(&out, "\nend of %s:\n%s", filepath.Base(f.Name()), program.Tail(string(content), 10))
		}
	}
	return out.String()
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
