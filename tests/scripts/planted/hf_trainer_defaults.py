from transformers import Trainer, TrainingArguments

arguments = TrainingArguments(output_dir="out", num_train_epochs=3)  # expect: num-workers
again = TrainingArguments("out", dataloader_num_workers=0, fp16=True)  # expect: num-workers
trainer = Trainer(model(), arguments, train_dataset=photos())
trainer.train()
