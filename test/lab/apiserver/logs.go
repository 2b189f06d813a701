package apiserver

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/runtime-watcher/runtime-watcher/test/lab/machine"
)

// logs are the files that etcd and the API server write to. Files, not pipes: they need no reader, and
// they stay after this process.
type logs [2]*os.File

// openLogs creates the files in dir, or in fallback when dir is empty.
func openLogs(dir, fallback string) (l logs, err error) {
	for i, name := range []string{"etcd.log", "kube-apiserver.log"} {
		file, failed := os.Create(filepath.Join(cmp.Or(dir, fallback), name))
		l[i], err = file, errors.Join(err, failed)
	}
	return l, err
}

func (l logs) close() {
	for _, file := range l {
		_ = file.Close()
	}
}

// tail is the end of each log that is not empty, for an error message.
func (l logs) tail() string {
	var out strings.Builder
	for _, f := range l {
		content, err := os.ReadFile(f.Name())
		if err == nil && len(content) > 0 {
			fmt.Fprintf(&out, "\nend of %s:\n%s", filepath.Base(f.Name()), machine.Tail(string(content), 10))
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
