package keys_test

import (
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/runtime-watcher/runtime-watcher/keys"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

// patience bounds the time of prompt operations on a busy machine.
const patience = 2 * time.Minute

const runtime1 = "skr-1"

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// pki is a CA with material for both ends.
type pki struct {
	ca             *testpki.CA
	client, server *keys.Material
}

func newPKI(t testing.TB) pki {
	t.Helper()
	ca := must(testpki.NewCA("test", testpki.Options{}))
	return pki{
		ca:     ca,
		client: material(t, must(ca.Client(runtime1, testpki.Options{})), ca),
		server: material(t, must(ca.Server("kcp", testpki.Options{})), ca),
	}
}

func material(t testing.TB, leaf *testpki.Leaf, cas ...*testpki.CA) *keys.Material {
	t.Helper()
	return must(keys.NewMaterial(testpki.Bundle(cas...), leaf.CertPEM, leaf.KeyPEM))
}

// switchSource is material that a test replaces.
type switchSource struct {
	atomic.Pointer[keys.Material]
}

func (s *switchSource) set(material *keys.Material) { s.Store(material) }

func (s *switchSource) Material() (*keys.Material, error) { return s.Load().Material() }
