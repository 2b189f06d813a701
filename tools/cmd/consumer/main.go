// Command consumer imports the released modules of this repository as others do: make consumer.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"github.com/runtime-watcher/runtime-watcher/tools/internal/consumer"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := consumer.Check(ctx, ".", os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "consumer:", err)
		os.Exit(1)
	}
}
