package fleet

import "time"

// certificate contains the life of the last client certificate of a replica.
type certificate struct{ notBefore, notAfter time.Time }

// isExpiring means that less than a day and less than a sixth of the life is left.
func (c certificate) isExpiring(now time.Time) bool {
	if c.notAfter.IsZero() {
		return false
	}
	const within = 24 * time.Hour
	const part = 6 // cert-manager renews when a third is left.
	return c.notAfter.Sub(now) < min(within, c.notAfter.Sub(c.notBefore)/part)
}
