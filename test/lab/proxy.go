package lab

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Proxy is the process of a tinyproxy (Debian), an HTTP proxy.
type Proxy struct {
	*Process

	Addr string
}

// StartProxy runs a proxy until the test ends. It allows CONNECT to one port. More are lines of its
// configuration.
func StartProxy(t testing.TB, port string, more ...string) *Proxy {
	t.Helper()

	path, err := exec.LookPath("tinyproxy")
	if err != nil {
		Missing(t, "needs an HTTP proxy (Debian: tinyproxy): %v", err)
	}

	own := FreePort(t)
	config := filepath.Join(t.TempDir(), "tinyproxy.conf")
	text := fmt.Sprintf("Listen 127.0.0.1\nPort %d\nAllow 127.0.0.1\nMaxClients 50\nTimeout 600\nConnectPort %s\nLogLevel Error\n",
		own, port)
	text += strings.Join(append(more, ""), "\n")
	NoError(t, os.WriteFile(config, []byte(text), 0o600))
	p := &Proxy{Process: NewProcess(t, "proxy", path, nil, "-d", "-c", config), Addr: Address(own)}
	p.Launch()
	p.Await()

	return p
}

// Await returns when the proxy accepts connections.
func (p *Proxy) Await() {
	p.t.Helper()
	Eventually(p.t, patience, "the proxy accepts connections", func() bool { return Accepts(p.Addr) })
}
