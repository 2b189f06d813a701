package proxy

import (
	"context"
	"net"
	"net/url"
)

// Over returns a dialer for a proxy at the other end of a connection.
func Over(conn net.Conn) *Dialer {
	return &Dialer{
		proxy: &url.URL{Scheme: "http", Host: "proxy:3128"}, timeout: longest,
		dial: func(context.Context, string, string) (net.Conn, error) { return conn, nil },
	}
}
