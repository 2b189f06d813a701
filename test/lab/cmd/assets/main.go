// Command assets builds the programs of tests, if they are not there yet, and prints where they are:
// the folder of kube-apiserver and etcd, with -kubectl also of kubectl, or cert-manager's controllers. Progress goes to
// standard error.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
	"github.com/runtime-watcher/runtime-watcher/test/lab/certmanager"
)

func main() {
	controllers := flag.Bool("certmanager", false, "build cert-manager's controllers, and no API server")
	kubectl := flag.Bool("kubectl", false, "build kubectl, too")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	path, err := build(ctx, *controllers, *kubectl)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "assets:", err)
		os.Exit(1)
	}

	fmt.Fprintln(os.Stdout, path)
}

func build(ctx context.Context, controllers, kubectl bool) (path string, err error) {
	if controllers {
		return certmanager.Assets(ctx, certmanager.AssetsOptions{})
	}
	return apiserver.Assets(ctx, apiserver.AssetsOptions{Kubectl: kubectl})
}
