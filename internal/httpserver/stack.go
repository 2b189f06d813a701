package httpserver

// growStack grows the stack of this goroutine to 16 KiB at once. net/http starts a goroutine with 2
// KiB for each request of HTTP/2, and the runtime would copy its stack at each doubling.
//
//go:noinline
func growStack(index int64) byte {
	var room [8 << 10]byte
	return room[uint64(index)%uint64(len(room))] //nolint:gosec // Any index will do.
}
