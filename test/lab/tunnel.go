package lab

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync"
)

// Tunnel accepts the CONNECT request that w answers, and copies bytes between its client and inside
// until either of them or ctx ends. It closes both, and waits for its goroutines.
func Tunnel(ctx context.Context, w http.ResponseWriter, inside net.Conn) {
	defer inside.Close()

	outside, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer outside.Close()

	_, _ = io.WriteString(outside, "HTTP/1.1 200 OK\r\n\r\n") // Else the copies end immediately.
	ctx, end := context.WithCancel(ctx)
	defer end()

	var copies sync.WaitGroup
	for to, from := range map[net.Conn]net.Conn{inside: outside, outside: inside} {
		copies.Go(func() {
			defer end()
			_, _ = io.Copy(to, from) // Any end is one.
		})
	}

	<-ctx.Done()
	_ = inside.Close() // This ends the copies.
	_ = outside.Close()
	copies.Wait()
}
