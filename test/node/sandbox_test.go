package node

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// What a thread has started to die with its parent dies with that thread: one that ended with a pod once took cert-manager along.
func TestAThreadOutlivesItsNetwork(t *testing.T) {
	home := namespace(t)

	n, err := newNetwork()
	if err != nil {
		t.Skipf("network namespaces cannot be made here: %v", err)
	}

	var (
		thread int
		away   string
	)

	if err := n.inside(func() (err error) {
		thread = unix.Gettid()
		away, err = os.Readlink("/proc/thread-self/ns/net")

		return err
	}); err != nil {
		t.Fatal(err)
	}

	n.close()

	back, err := os.Readlink(fmt.Sprintf("/proc/self/task/%d/ns/net", thread))
	if err != nil {
		t.Fatalf("the thread has ended: %v", err)
	}

	if away == home || back != home {
		t.Errorf("the thread of a pod was in %s, and then in %s, want another than %s, and then that", away, back, home)
	}
}

func namespace(t *testing.T) string {
	t.Helper()

	name, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}

	return name
}
