package watchermetrics

import prom "github.com/prometheus/client_golang/prometheus"

// NewRevocations returns the metrics of a list of revoked senders, registered with reg, as a
// function that fits the field Changed of intake.RevocationOptions. It returns immediately and may
// be called concurrently. Until it is called for a first list, the list counts as broken.
// NewRevocations fails for the reasons for which [NewAgent] fails.
func NewRevocations(reg prom.Registerer, opts Options) (changed func(entries int, err error), err error) {
	err = register(reg, "revocations", opts, func(f *factory) {
		entries := f.addGauge("entries", "Entries in the list of revoked senders that is in use.")
		broken := f.addGauge("broken",
			"1 while the list of revoked senders is missing, malformed or cannot be read, otherwise 0. "+
				"The last good list stays in use.")
		broken.Set(1)
		changed = func(count int, err error) {
			if err != nil {
				broken.Set(1)
				return
			}

			entries.Set(float64(count))
			broken.Set(0)
		}
	})

	return changed, err
}
