package main

import (
	"context"

	"github.com/runtime-watcher/runtime-watcher/tools/internal/consumer"
)

// checkConsumer imports the released modules as others do.
func checkConsumer(ctx context.Context, repo *repository) error {
	return consumer.Check(ctx, repo.root, repo.log)
}
