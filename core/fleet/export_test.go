package fleet

// ErrManagerTaken is the error of Start beside another one for the same manager.
var ErrManagerTaken = errManagerTaken
