package main

import (
	"context"
	"time"
)

// summary prints why the operator has reconciled.
func (d *demo) summary(ctx context.Context, took time.Duration) error {
	counts, err := d.Reconciles(ctx)
	if err != nil {
		return err
	}
	d.printf("\nAll effects are as expected, after %s. The reconciles by cause:\n\n", seconds(took))
	causes := []string{"local", "event", "resync", "freshness", "poll", "retry"}
	d.printf("  %-18s", "")
	for _, cause := range causes {
		d.printf(" %10s", cause)
	}
	for _, controller := range []string{"lifecycle-manager", "module-manager"} {
		d.printf("\n  %-18s", controller)
		for _, cause := range causes {
			d.printf(" %10d", counts[[2]string{controller, cause}])
		}
	}
	d.printf("\n")
	return nil
}
