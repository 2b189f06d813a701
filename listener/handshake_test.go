package listener_test

import (
	"crypto/tls"
	"net"
	"runtime"
	"sync"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/listener"
)

// MaxHandshakes compute at once, here more than by default. Package httpserver has the order in which others follow.
func TestMaxHandshakes(t *testing.T) {
	t.Parallel()
	slots := runtime.GOMAXPROCS(0) + 1
	ca := newAuthority(t, "ca")
	config := serverConfig(t, ca, tls.RequireAndVerifyClientCert, ca)
	var inside, clients sync.WaitGroup
	inside.Add(slots)
	config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		inside.Done()
		inside.Wait()
		return nil, nil
	}
	run := start(t, listener.FromTLSWithRoots(ca.roots(), listener.PeerOptions{}), listener.InsecureAllowAll(), &recorder{},
		listener.Options{TLS: config, MaxHandshakes: slots})
	for range slots {
		conn := must(net.Dial("tcp", run.address()))(t)
		clients.Go(func() {
			defer conn.Close()
			client := tls.Client(conn, &tls.Config{RootCAs: ca.Pool(), ServerName: "127.0.0.1"})
			_ = client.HandshakeContext(t.Context()) // Without a certificate it fails, or later.
		})
	}
	inside.Wait()
	clients.Wait()
}
