// Minimal is a listener without Kubernetes: it prints each delivery as one line of JSON to standard output, and what else
// there is to say to standard error.
//
// Runtimes that connect straight to it prove who they are by their client certificate:
//
//	minimal -manager=my-operator -ca=ca.crt -cert=tls.crt -key=tls.key
//
// Behind a gateway that ends TLS, the certificate comes in the header X-Forwarded-Client-Cert. The header is believed only when the
// gateway connects from one of the address ranges:
//
//	minimal -manager=my-operator -ca=ca.crt -xfcc-from=10.0.0.0/8
//
// The files are followed: certificates rotate without restart. SIGINT and SIGTERM stop it.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr)

	stop()

	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(exitCode(err))
	}
}
