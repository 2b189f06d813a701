// Command consumer imports the released modules of this repository as other projects do. Run it
// with make consumer.
package main

import (
	"context"
	"io"
	"os"

	"github.com/runtime-watcher/runtime-watcher/tools/internal/command"
	"github.com/runtime-watcher/runtime-watcher/tools/internal/consumer"
)

func main() { os.Exit(command.Run("consumer", run)) }

func run(ctx context.Context, _ []string, stdout, _ io.Writer) error {
	return consumer.Check(ctx, ".", stdout)
}
