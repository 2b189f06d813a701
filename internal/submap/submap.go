// Package submap compares labels and annotations, which several programs write.
package submap

// Contains reports whether all has each entry of part with the same value. It may have more.
func Contains(all, part map[string]string) bool {
	for name, want := range part {
		value, has := all[name]
		if !has || value != want {
			return false
		}
	}
	return true
}
